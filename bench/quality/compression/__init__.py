"""What the benchmark `learned_hash` compares, on which logs, and what a map of 10^7 values costs."""
