"""Verification: a folder of a run, a dataset, checkpoints or a sweep → what was checked, and what is damaged.

It only reads. :func:`ziggurat.verification.verify.verify` is the entry.
"""
