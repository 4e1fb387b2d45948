"""Measures the bytes and the time of each sharding on an emulated cluster with a slow network.

Four hosts of two ranks are network namespaces with links of 500 Mbit per second. The ranks are processes that
communicate over gloo. They share the cores of the machine, so seconds show which sharding is better on a slow network,
but not how fast a cluster is. Bytes are counted by the kernel and do not depend on the machine.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.lab.cluster import Shape, unavailable
from bench.lab.launch import measured_in_cluster
from bench.lab.workload import Case

SHAPE, RANKS = Shape(hosts=4, rate="500mbit"), 2
PAIR = Shape(hosts=2, rate="500mbit"), 1
SHARDINGS = ("table_wise", "row_wise", "column_wise", "data_parallel", "table_row_wise", "grid")
LARGE: dict[str, Any] = {"hidden": (1024, 1024, 512), "tables": 8, "dim": 16, "batch_size": 1024}
"""A dense part of 2 M parameters, which takes longer to send than the rows of small tables."""
IDS: dict[str, Any] = {"tables": 8, "ids": 40, "dim": 16, "hidden": (1024, 512), "batch_size": 4096}
"""Histories of 40 ids whose rows are summed, so that more bytes of ids are sent than of rows."""
EPOCH = 32
"""The steps of an epoch; the transfer of its first batch cannot overlap with a step."""

Samples = Mapping[str, Sequence[Mapping[str, float]]]


def measured(
    context: Context,
    cases: Sequence[Case],
    *,
    pair: bool = False,
    inputs: bool = False,
    steps: int = 8,
    place: tuple[Shape, int] | None = None,
) -> Samples:
    """Returns case -> the measurements of each round.

    Args:
        context: the settings of the run.
        cases: the cases to measure in turns.
        pair: whether to use two hosts of one rank instead of all hosts.
        inputs: whether to measure the transfer of ids alone too.
        steps: the steps of a round.
        place: the shape of the cluster and the ranks of a host; by default four hosts of two ranks, or the pair.
    """
    shape, ranks = place or _shape(context.quick or pair)
    rounds = {"warmups": 1, "rounds": 1, "steps": 2} if context.quick else {"warmups": 1, "rounds": 5, "steps": steps}
    spec = {"cases": [case.to_json() for case in cases], "inputs": inputs, **rounds}
    return measured_in_cluster(context, shape, ranks, "bench.lab.worker", spec)


def _shape(pair: bool) -> tuple[Shape, int]:
    """Returns the shape of the cluster and the ranks per host."""
    return PAIR if pair else (SHAPE, RANKS)


def note(pair: bool) -> str:
    """Returns the note that describes the cluster."""
    shape, ranks = _shape(pair)
    return (
        f"{shape.hosts} hosts x {ranks} ranks on {len(os.sched_getaffinity(0))} cores, links of {shape.rate}; bytes "
        "and seconds are per step, bytes those of all ranks"
    )


def _figures(found: Samples) -> list[Figure]:
    figures: list[Figure] = []
    for name, rounds in found.items():
        for key, unit, scale in (("seconds", "ms", 1e3), ("inter", "MB", 1e-6), ("intra", "MB", 1e-6)):
            figures.append(Figure(f"{name}.{key}", unit, tuple(scale * each[key] for each in rounds)))
    return figures


def _ratio(found: Samples, above: str, below: str, key: str) -> tuple[float, ...]:
    return tuple(a[key] / b[key] for a, b in zip(found[above], found[below], strict=True))


def run_collectives(context: Context) -> Result:
    """Measures all shardings of tables and all strategies for the dense part."""
    shardings = [Case(f"tables {sharding}", sharding) for sharding in SHARDINGS]
    dense = [Case(f"dense {name}", parallel={"dense": {"name": name}}, **LARGE) for name in ("ddp", "fsdp", "hsdp")]
    found = measured(context, [*shardings, *dense])
    faster = _ratio(found, "dense fsdp", "dense hsdp", "seconds")
    figures = (*_figures(found), Figure("dense hsdp.vs_fsdp", "x", faster))
    notes = (
        note(context.quick),
        "seconds in ms, inter and intra in MB; vs_fsdp: the speed of hsdp relative to fsdp",
    )
    return Result(figures, 1, len(faster), notes)


def run_pipeline(context: Context) -> Result:
    """Measures the share of the transfer time of ids that overlaps with the previous step.

    It is measured with a core per rank, and with four ranks per core.
    """
    cases = [Case(name, "table_wise", {"pipeline": name == "ahead"}, **IDS) for name in ("ahead", "in_turn")]
    found = measured(context, cases, pair=True, inputs=True, steps=EPOCH)
    alone, hidden = _hidden(found)
    figures = [
        *_figures(found),
        Figure("input_distribution", "ms", alone, "without other work"),
        Figure("hidden", "%", hidden, "of that time"),
    ]
    notes = [note(True)]
    if not context.quick:
        alone, crowded = _hidden(measured(context, cases, inputs=True, steps=EPOCH))
        figures.append(Figure("input_distribution.crowded", "ms", alone))
        figures.append(Figure("hidden.crowded", "%", crowded, "sending takes processor time, and no core is idle"))
        notes.append(f"crowded: {note(False)}")
    return Result(tuple(figures), 1, len(hidden), tuple(notes))


def _hidden(found: Samples) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the milliseconds of the input distribution alone, and the percentage of it that overlap saves."""
    hidden = tuple(
        100 * (b["seconds"] - a["seconds"]) / statistics.mean((a["input_seconds"], b["input_seconds"]))
        for a, b in zip(found["ahead"], found["in_turn"], strict=True)
    )
    return tuple(1e3 * each["input_seconds"] for each in found["in_turn"]), hidden


DEPENDS = ("bench/system/lab.py",)

LAB_COLLECTIVES = Benchmark(
    name="lab_collectives",
    claim="Every sharding of tables and of the dense part trains on a slow cluster, and sharding the dense part within "
    "hosts is faster than across hosts.",
    targets={"dense hsdp.vs_fsdp": Target(1.2)},
    depends_on=DEPENDS,
    run=run_collectives,
    layout="board",
    missing=unavailable,
)

PIPELINE_OVERLAP = Benchmark(
    name="pipeline_overlap",
    claim="Most of the transfer time of ids between ranks overlaps with the previous step.",
    targets={"hidden": Target(70)},
    depends_on=DEPENDS,
    run=run_pipeline,
    missing=unavailable,
)
