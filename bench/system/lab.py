"""A slow cluster in one machine: what each way to spread a model sends between hosts, and what that costs.

Four hosts of two ranks are network namespaces whose links let 500 Mbit a second through; the ranks are processes that
talk over gloo. All of them share the machine's cores, so seconds say which way is better on a slow network, not how
fast a cluster is; bytes are the kernel's own count and depend on neither.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.lab.cluster import Cluster, Shape, unavailable
from bench.lab.launch import launch
from bench.lab.workload import Case
from ziggurat.core.errors import EnvironmentMismatch

SHAPE, RANKS = Shape(hosts=4, rate="500mbit"), 2
PAIR = Shape(hosts=2, rate="500mbit"), 1
SHARDINGS = ("table_wise", "row_wise", "column_wise", "data_parallel", "table_row_wise", "grid")
LARGE: dict[str, Any] = {"hidden": (1024, 1024, 512), "tables": 8, "dim": 16, "batch_size": 1024}
"""A dense part of 2 M parameters, which takes longer to send than small tables' rows."""
IDS: dict[str, Any] = {"tables": 8, "ids": 40, "dim": 16, "hidden": (1024, 512), "batch_size": 4096}
"""Histories of 40 ids whose rows are summed: more bytes of ids travel than of rows."""
EPOCH = 32
"""Steps of an epoch, at whose first batch there is nothing to hide behind."""

Samples = Mapping[str, Sequence[Mapping[str, float]]]


def measured(
    context: Context, cases: Sequence[Case], *, pair: bool = False, inputs: bool = False, steps: int = 8
) -> Samples:
    """Case -> what its rounds of so many steps came to, on all hosts or on a ``pair`` of ranks."""
    shape, ranks = _shape(context.quick or pair)
    rounds = {"warmups": 1, "rounds": 1, "steps": 2} if context.quick else {"warmups": 1, "rounds": 5, "steps": steps}
    said: list[str] = []

    def hear(line: str) -> None:
        said.append(line)
        if "ms a step" in line:
            context.say(line)

    with tempfile.TemporaryDirectory(dir=context.cache, prefix="lab-") as folder, Cluster(shape) as cluster:
        spec, out = Path(folder) / "spec.json", Path(folder) / "out.json"
        spec.write_text(json.dumps({"cases": [case.to_json() for case in cases], "inputs": inputs, **rounds}))
        path = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        ended = launch(cluster, ranks, ["-m", "bench.lab.worker", str(spec), str(out)], hear, path)
        if ended.status != 0:
            raise EnvironmentMismatch(
                f"the lab ended with status {ended.status}:\n" + "\n".join(said[-15:]), "look at what its ranks say"
            )
        return json.loads(out.read_text(encoding="utf-8"))


def _shape(pair: bool) -> tuple[Shape, int]:
    """Hosts and their links, and ranks a host."""
    return PAIR if pair else (SHAPE, RANKS)


def note(pair: bool) -> str:
    shape, ranks = _shape(pair)
    return (
        f"{shape.hosts} hosts x {ranks} ranks on {len(os.sched_getaffinity(0))} cores, links of {shape.rate}; bytes "
        "and seconds are of a step of all ranks"
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
    """Every sharding and every dense strategy."""
    shardings = [Case(f"tables {sharding}", sharding) for sharding in SHARDINGS]
    dense = [Case(f"dense {name}", parallel={"dense": {"name": name}}, **LARGE) for name in ("ddp", "fsdp", "hsdp")]
    found = measured(context, [*shardings, *dense])
    faster = _ratio(found, "dense fsdp", "dense hsdp", "seconds")
    figures = (*_figures(found), Figure("dense hsdp.vs_fsdp", "x", faster))
    notes = (
        note(context.quick),
        "seconds in ms, inter and intra in MB; vs_fsdp: steps of hsdp in the time of one of fsdp",
    )
    return Result(figures, 1, len(faster), notes)


def run_pipeline(context: Context) -> Result:
    """How much of the time that ids travel is hidden behind the step before: where each rank has a core, and where
    four share one."""
    cases = [Case(name, "table_wise", {"pipeline": name == "ahead"}, **IDS) for name in ("ahead", "in_turn")]
    found = measured(context, cases, pair=True, inputs=True, steps=EPOCH)
    alone, hidden = _hidden(found)
    figures = [
        *_figures(found),
        Figure("input_distribution", "ms", alone, "while nothing else is done"),
        Figure("hidden", "%", hidden, "of that time"),
    ]
    notes = [note(True)]
    if not context.quick:
        alone, crowded = _hidden(measured(context, cases, inputs=True, steps=EPOCH))
        figures.append(Figure("input_distribution.crowded", "ms", alone))
        figures.append(Figure("hidden.crowded", "%", crowded, "sending is work too, and no core is free for it"))
        notes.append(f"crowded: {note(False)}")
    return Result(tuple(figures), 1, len(hidden), tuple(notes))


def _hidden(found: Samples) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Milliseconds of the input's distribution alone; % of it that steps are shorter by where it goes ahead of them."""
    hidden = tuple(
        100 * (b["seconds"] - a["seconds"]) / statistics.mean((a["input_seconds"], b["input_seconds"]))
        for a, b in zip(found["ahead"], found["in_turn"], strict=True)
    )
    return tuple(1e3 * each["input_seconds"] for each in found["in_turn"]), hidden


DEPENDS = ("bench/system/lab.py",)

LAB_COLLECTIVES = Benchmark(
    name="lab_collectives",
    claim="Every way to split tables and the dense part trains on a slow cluster, and sharding the dense part inside "
    "hosts beats sharding it across them.",
    targets={"dense hsdp.vs_fsdp": Target(1.2)},
    depends_on=DEPENDS,
    run=run_collectives,
    layout="board",
    missing=unavailable,
)

PIPELINE_OVERLAP = Benchmark(
    name="pipeline_overlap",
    claim="Most of the time in which ids travel between ranks is hidden behind the step before.",
    targets={"hidden": Target(70)},
    depends_on=DEPENDS,
    run=run_pipeline,
    missing=unavailable,
)
