"""Benchmarks of single components."""
