"""CSV and TSV files: the header, the block reader, raw rows, and a reference splitter of records."""
