"""Apache ORC as a source."""
