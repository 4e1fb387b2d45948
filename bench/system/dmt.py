"""Measures towers on emulated clusters whose hosts are faster inside than between each other.

Contestants train the same batches: TorchRec used directly; our flat exchange, pipelined; the tower transform without
modules, which computes the same model; and the transform with modules that leave a half or an eighth of a tower's
numbers, and whose quality ``dmt_quality`` measures. A model with modules is smaller than the flat one, too, so the
smallest is also trained by the flat exchange: what the transform gains over that is what its placement is worth, and
the rest is the smaller model's.

Tables have the cardinalities of Criteo's Kaggle log, up to :data:`MOST_ROWS`. The flat exchange gets the plan that our
planner makes for the links of the cluster, in which small tables are copied to all ranks; TorchRec gets it, too. The
transform cannot copy tables: they are whole on the ranks of their tower's host in turn.

Clusters differ in hosts, in ranks of a host, and in how many times as fast a host is inside as between hosts. One host
has no links between hosts: there the transform is the flat exchange, and what is gained is the smaller model's. The
ranks share the cores of the machine and the loopback of a host is limited too, so seconds are those of the links where
these are slow enough; bytes are counted by the kernel.

Each model on each cluster is a case, which is kept: an interrupted run, or another machine, goes on with those that are
missing.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.lab.cluster import Shape, unavailable
from bench.lab.tower_modules import dcn_module, dlrm_module
from bench.lab.workload import Case
from bench.resumable_cases import ResumableCases, kept_in_repository
from bench.system.lab import Samples, measured
from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.core.plan import Sharding
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning.config import PlanningConfig
from ziggurat.planning.planner import plan_problem, problem_of

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

    @property
    def towers(self) -> int:
        """As many towers everywhere, but where there are more hosts."""
        return max(4, self.hosts)

    @property
    def topology(self) -> Topology:
        """What the planner is told of it; the ranks of a host share its links."""
        between = 1e6 * RATE_MBIT / 8
        within = between * self.ratio / self.ranks
        return Topology(self.hosts, self.ranks, "cpu", "cpu", _MEMORY, _LOOKUP, within, between)


_MEMORY, _LOOKUP = 64 * 10**9, 5e9
"""Memory of a rank, of which there is enough, and bytes that it looks up in a second."""
MAIN = Place(4, 2, 10)
PLACES = (MAIN, Place(4, 2, 5), Place(4, 2, 20), Place(2, 2, 10), Place(8, 1, 10), Place(1, 2, 10))
QUICK = Place(2, 1, 10)
MOST_ROWS = 50_000
CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Different values of the 26 categories of Criteo's Kaggle log, as counted by DLRM's authors
(github.com/facebookresearch/dlrm)."""
DENSE, DIM, BATCH_SIZE = 13, 64, 2048
COMPRESSIONS = (2, 8)
MODELS: dict[str, tuple[dict[str, Any], Callable[[int, int, int, int], Any]]] = {
    "dlrm": ({"name": "dlrm", "bottom": {"hidden": [64]}, "top": {"hidden": [256, 128]}}, dlrm_module),
    "dcn_v2": ({"name": "dcn_v2", "cross_layers": 2, "rank": 64, "deep": {"hidden": [256, 128]}}, dcn_module),
}
"""Model -> its section, and what makes the module of its towers."""
TORCHREC, FLAT, TRANSFORM = "torchrec", "flat", "transform"
SMALLEST = f"modules ÷{COMPRESSIONS[-1]}"
PLACED_FLAT = f"flat {SMALLEST}"
MEASURED = "version 3"
"""What the measurements of a case mean; those of another version are made again."""


def cases(model: str, place: Place, *, quick: bool) -> list[Case]:
    """Returns a model trained in each way on a cluster."""
    dim, batch_size = (16, 256) if quick else (DIM, BATCH_SIZE)
    rows = tuple(min(each, 1000 if quick else MOST_ROWS) for each in CARDINALITIES)
    section, module_of = MODELS[model]
    partition = {"name": "strided", "towers": place.towers}
    shape: dict[str, Any] = {
        "tables": len(rows), "dense": DENSE, "dim": dim, "rows": rows, "batch_size": batch_size, "model": section,
        "plan": best_plan(rows, dim, batch_size, place),
    }  # fmt: skip
    # Everything goes through sockets, so that links within a host have the rate that is stated for all.
    flat = {"shared_memory": False}
    transform = {**flat, "embeddings": {"name": "tower_transform"}}

    def with_module(name: str, compression: int, parallel: Mapping[str, Any]) -> Case:
        module = module_of(len(rows), dim, place.towers, compression).model_dump(mode="json")
        return Case(name, parallel=parallel, towers={"partition": partition, "module": module}, **shape)

    none = {"partition": partition, "module": {"name": "none"}}
    return [
        Case(TORCHREC, parallel=flat, torchrec=True, **shape),
        Case(FLAT, parallel=flat, **shape),
        Case(TRANSFORM, parallel=transform, towers=none, **shape),
        *(with_module(f"modules ÷{each}", each, transform) for each in COMPRESSIONS),
        with_module(PLACED_FLAT, COMPRESSIONS[-1], flat),
    ]


def best_plan(
    rows: Sequence[int], dim: int, batch_size: int, place: Place
) -> dict[str, tuple[Sharding, tuple[int, ...]]]:
    """Returns the plan of our planner for the flat exchange: table -> sharding and ranks."""
    sgd: dict[str, Any] = {"name": "sgd", "lr": 0.01}
    specs = [TableSpec(f"t{n}", each, dim, (f"t{n}",), "sum", sgd, 0.1) for n, each in enumerate(rows)]
    config = PlanningConfig()
    plan = plan_problem(problem_of(specs, None, place.topology, config, batch_size), config.planner.build()).plan
    return {name: (each.sharding, each.ranks) for name, each in plan.placements.items()}


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
                figures += figures_of(case, found, cases(model, place, quick=context.quick)[0].batch_size)
                rounds = len(found[FLAT])
    shardings = Counter(sharding for sharding, _ in (cases("dlrm", MAIN, quick=False)[0].plan or {}).values())
    notes = (
        f"clusters are hosts x ranks of each, and the rate between hosts ({RATE_MBIT} Mbit/s) to that within; "
        f"{len(os.sched_getaffinity(0))} cores; {BATCH_SIZE:,} rows a step, {DENSE} numbers, {len(CARDINALITIES)} "
        f"tables with the cardinalities of Criteo's Kaggle log up to {MOST_ROWS:,}, vectors of {DIM}, one drawn id "
        "each; 4 towers, 8 on 8 hosts; inter and intra: MB of a step between hosts and within, of all ranks, counted "
        "by the kernel",
        f"plan of flat and torchrec on {MAIN.name}, by our planner for these links: "
        + ", ".join(f"{count} {sharding}" for sharding, count in shardings.most_common()),
        "transform computes the model of flat and torchrec, and the run checks that its losses are the same; ÷2 and "
        "÷8: so many times fewer numbers leave a tower, by modules whose quality dmt_quality measures",
        f"{PLACED_FLAT}: that model by the flat exchange. placement: the speed of {SMALLEST} over it; smaller_model: "
        "its own over flat's",
        "all is sent through sockets; on one host there are no links between hosts",
        stored.commits,
    )
    return Result(tuple(figures), 1, rounds, notes)


def _measured(context: Context, place: Place, model: str) -> Samples:
    wanted = cases(model, place, quick=context.quick)
    found = measured(context, wanted, place=(place.shape, place.ranks), steps=6)
    for ours, theirs in zip(found[TRANSFORM], found[FLAT], strict=True):
        if not math.isclose(ours["loss"], theirs["loss"], rel_tol=1e-4):
            raise EnvironmentMismatch(
                f"{place.name} {model}: the transform's loss is {ours['loss']}, the flat exchange's {theirs['loss']}",
                "this is a defect of the exchange: no figure is kept",
            )
    return found


def figures_of(case: str, found: Samples, batch_size: int) -> list[Figure]:
    """Returns the figures of a case.

    Args:
        case: its name.
        found: way -> its rounds, whose ``seconds`` are of a step.
        batch_size: rows of a step.
    """
    figures: list[Figure] = []
    for way, rounds in found.items():
        speeds = tuple(batch_size / each["seconds"] for each in rounds)
        figures.append(Figure(f"{case} {way}.speed", "rows/s", speeds))
        for key in ("inter", "intra"):
            figures.append(Figure(f"{case} {way}.{key}", "MB", tuple(1e-6 * each[key] for each in rounds)))
        for other in (TORCHREC, FLAT):
            if way not in (TORCHREC, FLAT, PLACED_FLAT):
                figures.append(Figure(f"{case} {way}.vs_{other}", "x", faster(found, other, way)))
    if PLACED_FLAT in found:
        figures.append(Figure(f"{case} {SMALLEST}.placement", "x", faster(found, PLACED_FLAT, SMALLEST)))
        figures.append(Figure(f"{case} {PLACED_FLAT}.smaller_model", "x", faster(found, FLAT, PLACED_FLAT)))
    return figures


def faster(found: Samples, than: str, name: str) -> tuple[float, ...]:
    """Returns how many times as fast a way is as another, round by round."""
    pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]] = list(zip(found[than], found[name], strict=True))
    return tuple(slow["seconds"] / fast["seconds"] for slow, fast in pairs)


DMT = Benchmark(
    name="dmt",
    claim="Models with towers and modules train at least 1.9 times as fast as the flat exchange trains flat ones, and "
    "as TorchRec used directly does, where links between hosts are ten times as slow as those within.",
    targets={
        f"{MAIN.name} {model} {SMALLEST}.vs_{other}": Target(1.9) for model in MODELS for other in (FLAT, TORCHREC)
    },
    depends_on=("bench/system/dmt.py", "bench/system/lab.py", "bench/lab/worker.py"),
    run=run,
    layout="board",
    missing=unavailable,
)
