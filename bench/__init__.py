"""Benchmarks with provenance: `python -m bench list | run NAME | status | docs`.

In: the public package, the peers' own environment, data folders given by hand. Out: `bench/results/NAME.json` and the
tables of `docs/benchmarks.md`. Standard library only at this level: the peers' drivers run from here without ziggurat.
"""
