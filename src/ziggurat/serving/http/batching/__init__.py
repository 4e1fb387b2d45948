"""Which requests may wait, and the batches in which they are encoded and predicted."""
