"""Turns raw logs into an encoded columnar dataset, and the dataset into batches.

In: files named by a source config. Out: ``RawBlock``s of typed columns (readers), a memory-mapped ``Dataset`` of
encoded columns, and ``Batch``es from the loader. Neighbours: ``features`` fits the encoders and applies them to the
blocks.
"""
