"""The state of a training run on disk: whole or not there, checksummed, resumable.

In: named tensors and a JSON state. Out: the same, verified. Neighbours: ``training`` decides what the state is and when
it is saved.
"""
