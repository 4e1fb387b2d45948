"""The rows of an export's tables, in memory and on disk, and the look-ups of a request in all of them."""
