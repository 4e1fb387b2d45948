"""Benchmarks of the whole road: training, preparation, the command line."""
