"""Text files as blocks of whole records, whatever the format of a record."""
