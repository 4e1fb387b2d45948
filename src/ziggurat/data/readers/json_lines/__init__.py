"""JSON lines: the block reader, conversion of JSON values, and complete rows."""
