"""The operations behind ``ziggurat checkpoint``: list, inspect, verify, compare, consolidate and prune.

In: the folder of a run or of its checkpoints. Out: plain values that the command line prints.
Neighbours: ``checkpoint.folder`` finds checkpoints, ``checkpoint.reader`` reads them.
"""
