"""Benchmarks with provenance: `python -m bench list | run NAME | status | docs`.

Benchmarks use the public package, an environment with the peer libraries, and data folders given on the command line.
They write `bench/results/NAME.json` and the tables of `docs/benchmarks.md`. This module imports nothing, because the
drivers of the peers import the package in an environment without ziggurat.
"""
