"""Keeps tables at the newest checkpoint of a training that is still running.

In: a checkpoint store, the tables that a caller holds. Out: the rows that changed since.
Neighbours: ``checkpoint.reader`` reads checkpoints, ``checkpoint.format`` knows their bytes.
"""
