"""The methods that propose pipelines: each is a generator that yields batches and is sent their scores."""
