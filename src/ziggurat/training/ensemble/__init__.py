"""Ensembles: checkpoints of runs on one prepared dataset, whose outputs are averaged.

In: run folders. Out: a small folder that is evaluated, and that predicts, as a run does. Start at
:mod:`~ziggurat.training.ensemble.ensemble`.
"""
