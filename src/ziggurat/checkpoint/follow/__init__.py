"""Keeps a server's tables at the newest checkpoint of a training that is still running.

In: a checkpoint store and the tables that a caller holds. Out: the rows that changed since.
Neighbours: ``checkpoint.verified_files`` reads checkpoints' files, ``checkpoint.format`` decodes them.
"""
