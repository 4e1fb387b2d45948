"""Measures the cost of checkpoints to the training that they interrupt, and the same for DCP's ``async_save``.

A DLRM trains on 26 tables of 150,000 rows of width 64, a gigabyte, with row-wise Adagrad and batches of 4,096. Ids
follow Zipf's law with exponent 1.05 and are drawn in advance, so no figure includes reading or the loader. A checkpoint
is saved every 60 seconds under the default policy, in fp32 and in 2 bits. The first checkpoint of each is full, and the
policy decides about the others. In the same intervals, at another time, ``torch.distributed.checkpoint.async_save``
writes all tensors with its default executor, a thread. Its stager is kept between checkpoints, so that it reuses its
memory. Its old checkpoints are deleted between steps, which is not measured. Our old checkpoints are deleted by the
writing thread, and most of that time is included in the figures.

The figures are:

- *Stall*: the time from the call until training continues, as a share of 60 seconds. A wait for an earlier checkpoint
  that is still being written is not included; ``write`` gives the duration of a write.
- *Slow-down*: the mean step during the write of a checkpoint, relative to the mean of the other steps of the same
  interval. It includes copy-on-write.
- *Tracking*: steps that mark dirty rows relative to steps that do not, in alternating rounds of several steps. For the
  latter, the hooks that mark rows are removed from the kernels.
- *Memory*: the largest resident set during the write of a checkpoint (the kernel's ``VmHWM``, reset before), minus
  that of steps alone. Freed memory is returned to the kernel before each measurement.
- *Restore*: the time to load all rows of tables and their optimizer states into a live model from the page cache.

Several ranks, a shared disk and CUDA are not measured. Training uses all cores but one, which is left to the writer;
for ``slowdown_all_cores`` training uses all cores, which is its default. Other work on the machine affects slow-down
and tracking most. These are medians over intervals and rounds, and both sides are measured in each interval and round.
Ids, weights and batches are seeded, but the number of steps of an interval varies. The benchmark takes about fifteen
minutes, 3 GB of scratch space and 6 GB of memory.
"""

from __future__ import annotations

import os
import statistics as st
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.micro.big_tables import CPU, Size
from bench.micro.stall_harness import Extent, StallHarness
from bench.provenance import digest
from bench.resumable_cases import ResumableCases
from ziggurat.checkpoint.format.manifest import Bits
from ziggurat.training.process_group import process_group

WIDTHS: tuple[Bits, ...] = (32, 2)
FULL = Extent(Size(26, 150_000, 64, 4096, 2_000_000, (256, 128)), 60.0, 5, 80, 8, 8.0, 1.0)
QUICK = Extent(Size(4, 2_000, 8, 256, 20_000, (16,)), 0.3, 2, 3, 2, 0.05, 0.0)


def run(context: Context) -> Result:
    extent, cores = QUICK if context.quick else FULL, len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="checkpoint-stall-") as scratch, process_group(CPU):
        resumable = ResumableCases(
            (Path(scratch) if context.quick else context.cache) / "checkpoint-stall.jsonl",
            digest(ROOT, CHECKPOINT_STALL.depends_on),
        )
        resumed = (f"{len(resumable)} of 4 parts in an earlier run",) if len(resumable) else ()
        before = torch.get_num_threads()
        torch.set_num_threads(max(1, cores - 1))
        try:
            harness = StallHarness(extent, Path(scratch), context.say)
            tracking = resumable.get("tracking", harness.tracking)
            widths: dict[Bits, dict[str, Any]] = {
                bits: resumable.get(f"{bits} bits", partial(harness.width, bits)) for bits in WIDTHS
            }
            slower = resumable.get("all cores", partial(harness.all_cores, cores))
        finally:
            torch.set_num_threads(before)
        resumable.forget()
    figures = [Figure("tracking", "%", tuple(tracking), "longer steps with marks")]
    intervals = [each for found in widths.values() for each in found["intervals"]]
    figures += _stalls(intervals, extent.interval_s)
    for bits, found in widths.items():
        figures += _width_figures(bits, found)
    note = f"full fp32 checkpoints during steps on all {cores} cores"
    figures += [Figure("slowdown_all_cores", "%", tuple(slower), note), *_peer_figures(intervals, widths)]
    return Result(tuple(figures), 0, extent.intervals, (*_notes(extent, cores, intervals), *resumed))


def _stalls(intervals: Sequence[Mapping[str, Any]], interval_s: float) -> list[Figure]:
    shares = {name: tuple(100 * each[name] / interval_s for each in intervals) for name in ("stall_s", "peer_stall_s")}
    changed = tuple(100 * each["changed"] for each in intervals)
    return [
        Figure("stall", "%", shares["stall_s"], f"of {interval_s:g} s, every checkpoint", "mean"),
        Figure("stall_worst", "%", (max(shares["stall_s"]),), "of the same"),
        Figure("peer_stall", "%", shares["peer_stall_s"], "async_save, of the same", "mean"),
        Figure("changed", "%", changed, "rows of the tables since the previous checkpoint, or since the start"),
    ]


def _width_figures(bits: Bits, found: Mapping[str, Any]) -> list[Figure]:
    name = "fp32" if bits == 32 else f"{bits}_bits"
    intervals: list[dict[str, Any]] = found["intervals"]
    figures = [
        Figure(f"slowdown_{name}", "%", tuple(each["slower"] for each in intervals), "mean step during the write"),
        Figure(f"restore_{name}", "s", (found["restore_s"],), "the last checkpoint, with those that it needs"),
    ]
    for kind, full in (("full", 1.0), ("delta", 0.0)):
        some = [each for each in intervals if each["full"] == full]
        if some:
            figures += [
                Figure(f"stall_{name}_{kind}", "ms", tuple(1e3 * each["stall_s"] for each in some)),
                Figure(f"write_{name}_{kind}", "s", tuple(each["write_s"] for each in some)),
                Figure(f"bytes_{name}_{kind}", "MB", tuple(each["bytes"] / 1e6 for each in some)),
                Figure(f"memory_{name}_{kind}", "MiB", tuple(each["memory_bytes"] / 2**20 for each in some)),
            ]
    return figures


def _peer_figures(intervals: Sequence[Mapping[str, Any]], widths: Mapping[Bits, Mapping[str, Any]]) -> list[Figure]:
    names = (
        ("peer_write", "s", "peer_write_s", 1.0),
        ("peer_bytes", "MB", "peer_bytes", 1e6),
        ("peer_slowdown", "%", "peer_slower", 1.0),
    )
    figures = [Figure(name, unit, tuple(each[key] / by for each in intervals)) for name, unit, key, by in names]
    most = max(each["peer_memory_bytes"] for each in intervals) / 2**20
    figures.append(
        Figure("peer_memory", "MiB", (most,), "at its first checkpoint, which allocates the copy that it keeps")
    )
    return [*figures, Figure("peer_restore", "s", tuple(found["peer_restore_s"] for found in widths.values()))]


def _notes(extent: Extent, cores: int, intervals: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    size = extent.size
    table_bytes = 4 * size.tables * size.rows * size.dim
    steps = st.fmean(1 / each["step_s"] for each in intervals)
    return (
        f"{size.tables} tables of {size.rows:,} rows of {size.dim}, {table_bytes / 1e6:,.0f} MB and a sum of squares "
        f"per row; batch {size.batch_size:,}, {steps:.1f} steps a second on {max(1, cores - 1)} of {cores} cores",
        f"{extent.intervals} intervals of {extent.interval_s:g} s per width, the first with a full checkpoint; dirty "
        f"rows take a byte per row, {100 / (4 * size.dim):.2f} % of the tables",
        "peer: torch.distributed.checkpoint.async_save with a thread and a kept stager, all tensors in fp32 each time; "
        "its restore verifies no checksums, ours verifies all",
        "memory: largest resident set while a checkpoint is written, minus that of steps alone",
    )


CHECKPOINT_STALL = Benchmark(
    name="checkpoint_stall",
    claim="A checkpoint per minute of a gigabyte of tables stalls training for at most .4 % of the time, writing it in "
    "the background slows steps by at most 5 %, and tracking changed rows costs at most 1 %.",
    targets={
        "stall_worst": Target(0.4, "at most"),
        "tracking": Target(1.0, "at most"),
        "slowdown_fp32": Target(5.0, "at most"),
        "slowdown_2_bits": Target(5.0, "at most"),
        "slowdown_all_cores": Target(5.0, "at most"),
    },
    depends_on=("bench/micro/checkpoint_stall.py",),
    run=run,
    missing=lambda: None if Path("/proc/self/clear_refs").exists() else "peak memory is read from Linux's /proc",
)
