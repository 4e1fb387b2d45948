"""Measures towers on an emulated cluster whose hosts are ten times as fast inside as between each other.

Three ways train the same batches: the flat exchange, pipelined, with tables in turn over all ranks; the tower
transform without modules, which computes the same model; and the transform with modules, one vector of each tower's
features. The ranks share the cores of the machine and the loopback of a host is limited too, so seconds are those of
the links where these are slow enough; bytes are counted by the kernel.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.lab.cluster import Shape, unavailable
from bench.lab.workload import Case
from bench.system.lab import Samples, measured

PLACE = Shape(hosts=4, rate="100mbit", local_rate="1gbit"), 2
QUICK = Shape(hosts=2, rate="100mbit", local_rate="1gbit"), 1
CRITEO: dict[str, Any] = {"tables": 26, "dense": 13, "dim": 64, "rows": 20_000, "batch_size": 2048}
"""The number of features of Criteo's log."""
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dlrm": (
        {"name": "dlrm", "bottom": {"hidden": [64]}, "top": {"hidden": [256, 128]}},
        {"name": "dlrm", "flat": 1, "each": 0, "width": 64},
    ),
    "dcn_v2": (
        {"name": "dcn_v2", "cross_layers": 2, "rank": 64, "deep": {"hidden": [256, 128]}},
        {"name": "dcn", "layers": 1, "rank": 64, "width": 64},
    ),
}
"""Model -> its section, and the module of its towers, whose compression is that of the paper's DLRM: F·N / (T·D)."""
WAYS = ("flat", "transform", "modules")
TRANSFORM = {"embeddings": {"name": "tower_transform"}}


def cases(hosts: int, *, quick: bool) -> list[Case]:
    """Returns each model trained in each way."""
    partition = {"name": "strided", "towers": hosts}
    shape: dict[str, Any] = {**CRITEO, "dim": 16, "batch_size": 256} if quick else CRITEO
    found: list[Case] = []
    for name, (model, module) in MODELS.items():
        narrow = {**module, "width": shape["dim"]}
        for way in WAYS:
            towers: Mapping[str, Any] | None = None
            if way != "flat":
                towers = {"partition": partition, "module": narrow if way == "modules" else {"name": "none"}}
            parallel = {} if way == "flat" else TRANSFORM
            found.append(Case(f"{name} {way}", parallel=parallel, model=model, towers=towers, **shape))
    return found


def run(context: Context) -> Result:
    """Measures samples a second and bytes between hosts for both models in all ways."""
    place = QUICK if context.quick else PLACE
    shape, ranks = place
    found = measured(context, cases(shape.hosts, quick=context.quick), place=place, steps=6)
    rows = cases(shape.hosts, quick=context.quick)[0].batch_size
    figures: list[Figure] = []
    for name, rounds in found.items():
        figures.append(Figure(f"{name}.speed", "rows/s", tuple(rows / each["seconds"] for each in rounds)))
        for key in ("inter", "intra"):
            figures.append(Figure(f"{name}.{key}", "MB", tuple(1e-6 * each[key] for each in rounds)))
    for name in MODELS:
        for way in WAYS[1:]:
            figures.append(Figure(f"{name} {way}.vs_flat", "x", _faster(found, f"{name} flat", f"{name} {way}")))
    notes = (
        f"{shape.hosts} hosts x {ranks} ranks on {len(os.sched_getaffinity(0))} cores, links of {shape.rate} between "
        f"hosts, {shape.local_rate} within; {rows:,} rows a step, {CRITEO['tables']} tables and {CRITEO['dense']} "
        "numbers; bytes are per step and of all ranks",
        "transform computes the model of flat; modules another one, whose quality is measured apart",
    )
    return Result(tuple(figures), 1, len(next(iter(found.values()))), notes)


def _faster(found: Samples, than: str, name: str) -> tuple[float, ...]:
    pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]] = list(zip(found[than], found[name], strict=True))
    return tuple(slow["seconds"] / fast["seconds"] for slow, fast in pairs)


DMT = Benchmark(
    name="dmt",
    claim="Towers with modules train at least 1.9 times as fast as the flat exchange where links between hosts are ten "
    "times as slow as those within.",
    targets={f"{name} modules.vs_flat": Target(1.9) for name in MODELS},
    depends_on=("bench/system/dmt.py", "bench/system/lab.py"),
    run=run,
    layout="board",
    missing=unavailable,
)
