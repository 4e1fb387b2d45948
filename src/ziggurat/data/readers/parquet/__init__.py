"""Parquet files: the block reader, and complete rows with every column of the file."""
