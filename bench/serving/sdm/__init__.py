"""Serving with tables that are larger than memory: the benchmark, its servers, its load."""
