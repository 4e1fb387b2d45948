"""What a user asks of checkpoints: list, inspect, verify, compare, consolidate and prune them.

In: the folder of a run or of its checkpoints. Out: plain values that the command line prints.
Neighbours: ``checkpoint.folder`` and ``checkpoint.reader``, which open them.
"""
