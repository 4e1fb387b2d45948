"""Searches a preprocessing pipeline for every feature of a table, and writes it as the ``features`` of a config."""
