"""The ingestion tier: readers that serve complete batches over Arrow Flight, and the loader that pulls them.

In: the blocks of a dataset, on the readers. Out: the batches of a ``Loader``, bit for bit, on the trainers. Neighbours:
``data/encoded/stream.py`` defines the rows of a range; ``features`` makes the blocks if raw logs are served.
"""
