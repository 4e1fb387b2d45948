"""Measures the time of `ziggurat --help`."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.measure import repeat, run_child

WARMUPS = 3


def run(context: Context) -> Result:
    script = Path(sys.executable).with_name("ziggurat")
    command = [script] if script.exists() else [sys.executable, "-m", "ziggurat.cli.main"]
    repeats = 5 if context.quick else 31
    samples = repeat(lambda: run_child([*command, "--help"]).seconds, WARMUPS, repeats)
    figure = Figure("help", "s", samples, "wall time from spawn to exit, files in the page cache")
    return Result((figure,), WARMUPS, repeats)


CLI_START = Benchmark(
    name="cli_start",
    claim="The command line starts quickly: `ziggurat --help` takes less than half a second.",
    targets={"help": Target(0.5, "at most")},
    depends_on=("bench/system/cli_start.py", "bench/launcher.py"),
    run=run,
)
