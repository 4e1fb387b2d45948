"""Numbers in samples of logs: how they are written, and which are ids and which quantities."""
