"""Scaling sweeps: trains one experiment in growing model sizes and fits the power law through the results.

Input: an experiment. Output: a folder of ordinary runs, ``scale.json`` and the fitted law.
"""
