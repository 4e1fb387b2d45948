"""Raw files of any supported format, as blocks of typed rows with the rows that had to be rejected.

In: the ``source`` section of a config and a raw schema. Out: ``RawBlock``s that can be resumed from any block's end.
Neighbours: one package per format (``csv``, ``json_lines``, ``libsvm``, ``parquet``); ``features`` consumes the blocks.
"""
