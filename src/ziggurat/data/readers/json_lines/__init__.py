"""JSON lines: the block reader, cells of JSON values, and raw rows."""
