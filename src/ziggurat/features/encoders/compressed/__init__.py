"""Encoders for tables with fewer rows than values: hashes, codes of several rows, and maps learned from likeness.

In: value counts of training rows, for learned maps also the vectors of a proxy model. Out: fitted encoders.
Neighbours: ``features.encoders.encoders`` lists their configs, ``features.preparation`` trains the proxy.
"""
