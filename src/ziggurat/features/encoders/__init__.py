"""Encoders of ids: each maps the raw values of one embedding table to its rows.

In: value counts of training rows. Out: fitted encoders that can be applied, saved and loaded.
Neighbours: ``features.preparation`` fits them, ``features.transform`` applies them.
"""
