"""Parquet files: the block reader, and raw rows with every column of the file."""
