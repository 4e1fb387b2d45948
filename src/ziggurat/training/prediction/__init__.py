"""Predicts with a trained run: rows in memory, or files of any format, whose rows are written with probabilities.

In: a run folder and raw rows. Out: probabilities, or the same rows with probability columns.
"""
