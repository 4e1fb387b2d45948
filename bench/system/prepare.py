"""Raw CSV to encoded dataset: memory and time, with polars converting the same file to Parquet as the yardstick."""

from __future__ import annotations

from bench.benchmark import Benchmark, Context, Result, Target

GIB = 2**30
FULL_BYTES, QUICK_BYTES = 5_000_000_000, 50_000_000

POLARS = "import sys, polars; polars.scan_csv(sys.argv[1]).sink_parquet(sys.argv[2])"


def run(context: Context) -> Result:
    raise NotImplementedError


PREPARE = Benchmark(
    name="prepare",
    claim="Preparing 5 GB of raw CSV stays within 2 GiB of memory and 2.5 times polars' time to rewrite it as Parquet.",
    targets={"peak_memory": Target(2, "at most"), "vs_polars": Target(2.5, "at most")},
    depends_on=(
        "src/ziggurat/core",
        "src/ziggurat/data",
        "src/ziggurat/features",
        "bench/system/prepare.py",
        "bench/measure.py",
    ),
    run=run,
)
