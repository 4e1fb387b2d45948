"""Preparation: turns raw logs into an encoded dataset with its fitted transform and statistics.

In: the ``data`` and ``features`` sections of a config. Out: a folder that :mod:`ziggurat.data.encoded` reads.
There are three passes: stage the raw blocks, fit on the training rows, encode. ``prepare`` runs them in this order.
"""
