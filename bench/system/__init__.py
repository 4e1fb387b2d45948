"""End-to-end benchmarks: training, preparation, the command line."""
