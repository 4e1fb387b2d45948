"""Measures towers on emulated clusters whose hosts are faster inside than between each other.

Four contestants train the same batches: TorchRec used directly; our flat exchange, pipelined; the tower transform
without modules, which computes the same model; and the transform with modules, one vector of each tower's features. All
tables are equal, so the best plan of the flat exchange is whole tables in turn over all ranks, dealt over hosts first,
so that no host sends more than another; TorchRec gets it, too.

Clusters differ in hosts, in ranks of a host, and in how many times as fast a host is inside as between hosts. One host
has no links between hosts: there the transform is the flat exchange, and nothing is to gain. The ranks share the cores
of the machine and the loopback of a host is limited too, so seconds are those of the links where these are slow
enough; bytes are counted by the kernel.

Each model on each cluster is a case, which is kept: an interrupted run, or another machine, goes on with those that are
missing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.lab.cluster import Shape, unavailable
from bench.lab.workload import Case
from bench.resumable_cases import ResumableCases, kept_in_repository
from bench.system.lab import Samples, measured

RATE_MBIT = 100
"""The links between hosts."""


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster: hosts, ranks of each, and how many times as fast a host is inside as between hosts."""

    hosts: int
    ranks: int
    ratio: int

    @property
    def name(self) -> str:
        return f"{self.hosts}x{self.ranks} 1:{self.ratio}"

    @property
    def shape(self) -> Shape:
        return Shape(self.hosts, f"{RATE_MBIT}mbit", f"{RATE_MBIT * self.ratio}mbit")


MAIN = Place(4, 2, 10)
PLACES = (MAIN, Place(4, 2, 5), Place(4, 2, 20), Place(2, 2, 10), Place(8, 1, 10), Place(1, 2, 10))
QUICK = Place(2, 1, 10)
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
TORCHREC, FLAT = "torchrec", "flat"
TOWERS = ("transform", "modules")
WAYS = (TORCHREC, FLAT, *TOWERS)
TRANSFORM = {"embeddings": {"name": "tower_transform"}}
MEASURED = "version 2"
"""What the measurements of a case mean; those of another version are made again."""


def cases(model: str, hosts: int, *, quick: bool) -> list[Case]:
    """Returns a model trained in each way, by hosts with a tower each."""
    partition = {"name": "strided", "towers": hosts}
    shape: dict[str, Any] = {**CRITEO, "dim": 16, "batch_size": 256} if quick else CRITEO
    section, module = MODELS[model]
    found: list[Case] = []
    for way in WAYS:
        towers: Mapping[str, Any] | None = None
        if way in TOWERS:
            own = {**module, "width": shape["dim"]} if way == "modules" else {"name": "none"}
            towers = {"partition": partition, "module": own}
        parallel = {**TRANSFORM, "shared_memory": hosts == 1} if way in TOWERS else {}
        found.append(Case(way, parallel=parallel, model=section, towers=towers, torchrec=way == TORCHREC, **shape))
    return found


def run(context: Context) -> Result:
    """Measures samples a second and bytes of both models in all ways on all clusters."""
    figures: list[Figure] = []
    places, models = ((QUICK,), ("dlrm",)) if context.quick else (PLACES, tuple(MODELS))
    rounds = 0
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="dmt-") as scratch:
        stored = ResumableCases(Path(scratch) / "cases.jsonl" if context.quick else kept_in_repository("dmt"), MEASURED)
        for place in places:
            for model in models:
                case = f"{place.name} {model}"
                context.say(f"{case}: {'measured before' if case in stored else 'is measured'}")
                found: Samples = stored.get(case, partial(_measured, context, place, model))
                figures += _figures(case, found, cases(model, place.hosts, quick=context.quick)[0].batch_size)
                rounds = len(found[FLAT])
    notes = (
        f"clusters are hosts x ranks of each, and the rate between hosts ({RATE_MBIT} Mbit/s) to that within; "
        f"{len(os.sched_getaffinity(0))} cores; {CRITEO['batch_size']:,} rows a step, {CRITEO['tables']} tables and "
        f"{CRITEO['dense']} numbers; as many towers as hosts; inter and intra: MB of a step between hosts and within, "
        "of all ranks, counted by the kernel",
        "transform computes the model of flat and torchrec; modules another one, whose quality is measured apart "
        "(dmt_quality)",
        "on several hosts all is sent through sockets, so that links within a host have the rate that is stated",
        "on one host the transform is the flat exchange: modules save only arithmetic there",
        stored.commits,
    )
    return Result(tuple(figures), 1, rounds, notes)


def _measured(context: Context, place: Place, model: str) -> Samples:
    return measured(context, cases(model, place.hosts, quick=context.quick), place=(place.shape, place.ranks), steps=6)


def _figures(case: str, found: Samples, batch_size: int) -> list[Figure]:
    figures: list[Figure] = []
    for way, rounds in found.items():
        speeds = tuple(batch_size / each["seconds"] for each in rounds)
        figures.append(Figure(f"{case} {way}.speed", "rows/s", speeds))
        for key in ("inter", "intra"):
            figures.append(Figure(f"{case} {way}.{key}", "MB", tuple(1e-6 * each[key] for each in rounds)))
        for other in (TORCHREC, FLAT):
            if way in TOWERS:
                figures.append(Figure(f"{case} {way}.vs_{other}", "x", _faster(found, other, way)))
    return figures


def _faster(found: Samples, than: str, name: str) -> tuple[float, ...]:
    pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]] = list(zip(found[than], found[name], strict=True))
    return tuple(slow["seconds"] / fast["seconds"] for slow, fast in pairs)


DMT = Benchmark(
    name="dmt",
    claim="Towers with modules train at least 1.9 times as fast as the flat exchange, and as TorchRec used directly, "
    "where links between hosts are ten times as slow as those within.",
    targets={f"{MAIN.name} {model} modules.vs_{other}": Target(1.9) for model in MODELS for other in (FLAT, TORCHREC)},
    depends_on=("bench/system/dmt.py", "bench/system/lab.py", "bench/lab/worker.py"),
    run=run,
    layout="board",
    missing=unavailable,
)
