"""Reads raw files of any supported format as blocks of typed rows, and reports the rows it rejects.

In: the ``source`` section of a config and a raw schema. Out: ``RawBlock``s; reading can resume from the end of any of
them. Neighbours: one package per format (``csv``, ``json_lines``, ``libsvm``, ``parquet``); ``features`` consumes the
blocks.
"""
