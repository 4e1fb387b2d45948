"""Raw logs in, encoded columnar dataset out.

In: files named by a source config. Out: ``RawBlock``s of typed columns (readers), a memory-mapped ``Dataset`` of
encoded columns, and ``Batch``es from the loader. Neighbours: ``features`` fits and applies the encoders in between.
"""
