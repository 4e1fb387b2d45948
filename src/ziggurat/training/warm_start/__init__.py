"""Warm starts: a new run whose weights come from a checkpoint of another run.

In: a source run and a freshly initialised recommender. Out: the recommender with the source's weights where they fit.
"""
