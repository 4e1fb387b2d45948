"""Checkpoints of a training run, on disk or in an object store: atomic, checksummed, incremental and resumable.

In: the tables' shards, named tensors and a JSON state. Out: the same, verified, for any number of ranks. Neighbours:
``embeddings`` marks the rows that changed, ``training`` decides what the state is and when it is saved.
"""
