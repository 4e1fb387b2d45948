"""The bytes of a checkpoint: manifest, blocks of rows, quantised values, and the legacy format 1.

In: rows of tables and their optimizer states. Out: the bytes of safetensors files, and back.
Neighbours: ``checkpoint.writer`` and ``checkpoint.block_reader`` move these bytes to and from a store.
"""
