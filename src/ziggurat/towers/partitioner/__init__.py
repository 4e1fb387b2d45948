"""The tower partitioner: which features share a tower.

In: the vectors that a trained flat model makes of features, row by row. Out: towers of equal size and load, in which
the features are those that interact most (or, if asked for, least).
"""
