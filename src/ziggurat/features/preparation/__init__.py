"""Preparation: raw logs to an encoded dataset with its fitted transform and statistics.

In: the ``data`` and ``features`` sections of a config. Out: a folder that :mod:`ziggurat.data.encoded` reads.
Three passes: stage the raw blocks, fit on the training rows, encode. ``prepare`` runs them in order.
"""
