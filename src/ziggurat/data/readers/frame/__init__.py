"""Rows in memory as a source: data frames and Arrow tables."""
