"""Scaling sweeps: one experiment in growing model sizes, and the power law through the results.

In: an experiment. Out: a folder of ordinary runs, ``scale.json`` and the fitted law.
"""
