"""The ingestion tier: readers that serve ready batches over Arrow Flight, and the loader that pulls them.

In: the blocks of a dataset, on the readers' side. Out: the batches of a ``Loader``, bit for bit, on the trainers' side.
Neighbours: ``data/encoded/stream.py`` says which rows a range holds; ``features`` makes the blocks where raw logs are
    served.
"""
