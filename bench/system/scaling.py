"""Compares the end-to-end throughput of two ranks with that of one, and with TorchRec used directly.

Every rank has one thread and its own batch, so two ranks do twice the work per step. They lose time to communication
and to shared resources of the machine, mostly memory bandwidth.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

from bench import workloads
from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import Contestant
from bench.measure import interleave, ratios

CONTESTANTS = {
    "one": ("bench.system.ours", 1),
    "two": ("bench.system.ours", 2),
    "torchrec_one": ("bench.system.torchrec_direct", 1),
    "torchrec_two": ("bench.system.torchrec_direct", 2),
}
BATCHES = 200
"""The batches of an epoch with one rank; with two ranks it has half as many, so the start of an epoch weighs more."""

NOTES = (
    "DeepFM on 26 tables, with one thread and a batch of 4,096 per rank; ranks of one machine",
    "torchrec: DistributedModelParallel and TrainPipelineSparseDist as in its DLRM example, with the same number of "
    "tables on each rank and batches already in memory; it never reads, shuffles or reports",
)


def run(context: Context) -> Result:
    warmups, repeats = (0, 1) if context.quick else (1, 7)
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="scaling-") as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch) / "tables"
        workload = workloads.tables(folder, context.quick, BATCHES)
        context.say(workload.source)
        contestants = {
            name: stack.enter_context(
                Contestant(name, [sys.executable, "-m", "bench.system.ranks", str(ranks), module, folder])
            ).start()
            for name, (module, ranks) in CONTESTANTS.items()
        }
        rounds = {name: contestant.epoch for name, contestant in contestants.items()}
        found = interleave(rounds, warmups, repeats, lambda line: context.say(f"{line} rows/s"))
    losses = ", ".join(f"{name} {contestant.losses[-1]:.3f}" for name, contestant in contestants.items())
    figures = (
        *(Figure(name, "rows/s", samples) for name, samples in found.items()),
        Figure("two_vs_one", "x", ratios(found["two"], found["one"])),
        Figure("torchrec_two_vs_one", "x", ratios(found["torchrec_two"], found["torchrec_one"])),
        Figure("vs_torchrec", "x", ratios(found["two"], found["torchrec_two"]), "two ranks each"),
    )
    return Result(figures, warmups, repeats, (*NOTES, f"{workload.source}; loss of the last epoch: {losses}"))


SCALING = Benchmark(
    name="scaling",
    claim="Two processes train nearly twice the rows of one, no slower than TorchRec used directly.",
    targets={"two_vs_one": Target(1.7), "vs_torchrec": Target(1.0)},
    depends_on=("bench/system/scaling.py",),
    run=run,
)
