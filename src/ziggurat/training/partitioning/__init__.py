"""Learns which features share a tower, and writes the config that says so.

In: an experiment, and a run of its flat model or none. Out: the features of each tower, and the experiment with them.
"""
