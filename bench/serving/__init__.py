"""Benchmarks of serving: servers and clients in processes of their own, pinned to cores of their own."""
