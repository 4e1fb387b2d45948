"""CSV and TSV files: the header, the block reader, complete rows, and the reference for splitting records."""
