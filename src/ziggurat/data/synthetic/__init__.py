"""Generates logs with planted structure, for which the best possible AUC is known.

In: a config. Out: Arrow tables, chunk by chunk; equal configs give equal bytes on every machine.
"""
