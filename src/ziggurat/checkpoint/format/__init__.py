"""The bytes of a checkpoint: manifest, blocks of rows, quantised numbers, and the legacy format 1.

In: rows of tables and their states. Out: the bytes of safetensors files, and back.
Neighbours: ``checkpoint.writer`` and ``checkpoint.reader`` move these bytes to and from a store.
"""
