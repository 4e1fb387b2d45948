"""The workload of ranks in the lab: a DLRM on random ids, with configurable sharding of tables and dense part.

Each case has its own recommender, assembled as in training. Cases take turns in one process group. Bytes are counted
by the kernel on the link and the loopback of every host.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from bench.lab.cluster import LINK
from ziggurat.core.batch import Batch
from ziggurat.core.plan import Placement, Plan, Sharding
from ziggurat.core.schema import Schema
from ziggurat.data.encoded.loader import Cursor
from ziggurat.parallel.world import World
from ziggurat.towers.config import Towers
from ziggurat.towers.placed import towers_of
from ziggurat.towers.upstream import transforms
from ziggurat.training.experiment import Experiment
from ziggurat.training.recommender import assemble
from ziggurat.training.step import Stepper, prefetched_batches

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration of the model and of its sharding.

    Attributes:
        name: the name of its figures.
        sharding: the sharding of every table.
        parallel: the ``parallel`` section of the experiment.
        tables, dim: the number of embedding tables, and their dimension.
        rows: the rows of each table, or one number for all.
        ids: the ids per example and table; the embeddings of several ids are summed.
        hidden: the widths of the dense part.
        batch_size: the global batch size.
        optimizer: the optimizer of the tables.
        dense: the number of numeric features.
        model: the ``model`` section; None for a DLRM with the widths of ``hidden``.
        towers: the ``towers`` section. With ``parallel.embeddings: {name: tower_transform}``, tables take turns over
            the ranks of their tower's host.
        torchrec: whether TorchRec is used directly (:mod:`bench.lab.direct`), with the same dense part and plan.
        plan: table -> its sharding and the ranks that have its shards; None: by ``sharding``, in turns.
    """

    name: str
    sharding: Sharding = "table_wise"
    parallel: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tables: int = 16
    rows: int | Sequence[int] = 10_000
    dim: int = 32
    ids: int = 1
    hidden: tuple[int, ...] = (256, 128)
    batch_size: int = 4096
    optimizer: Mapping[str, Any] = field(default_factory=lambda: {"name": "sgd", "lr": 0.01})
    dense: int = 0
    model: Mapping[str, Any] | None = None
    towers: Mapping[str, Any] | None = None
    torchrec: bool = False
    plan: Mapping[str, tuple[Sharding, Sequence[int]]] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Case:
        fields: dict[str, Any] = {**values, "hidden": tuple(values["hidden"])}
        return cls(**fields)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tables, which are those of the features."""
        return tuple(f"t{number}" for number in range(self.tables))

    @property
    def table_rows(self) -> dict[str, int]:
        """Table -> its rows."""
        rows = (self.rows,) * self.tables if isinstance(self.rows, int) else self.rows
        return dict(zip(self.names, rows, strict=True))


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of some steps.

    Attributes:
        seconds: the time per step.
        inter, intra: the bytes per step of all ranks, between hosts and inside them.
        loss: the loss of the last step on this rank.
    """

    seconds: float
    inter: float
    intra: float
    loss: float


class Contestant(ABC):
    """A case on this rank; all ranks take its steps together."""

    def __init__(self, case: Case) -> None:
        world = World.current()
        self._case, self._rows = case, case.batch_size // world.size
        self._names = list(case.names)
        self._draw = torch.Generator().manual_seed(world.rank)

    def steps(self, count: int) -> Measured:
        """Takes ``count`` steps and measures them; bytes sent for prefetched batches are included."""
        dist.barrier()
        before, started = sent_bytes(), time.perf_counter()
        loss = self._take([self._batch() for _ in range(count)])
        dist.barrier()
        seconds = (time.perf_counter() - started) / count
        sent = (sent_bytes() - before) / count
        return Measured(seconds, float(sent[0]), float(sent[1]), loss)

    @abstractmethod
    def _take(self, batches: list[Batch]) -> float:
        """Takes a step for each batch and returns the loss of the last."""

    def _batch(self) -> Batch:
        size, case = self._rows, self._case
        bags_N = torch.full((case.tables * size,), case.ids, dtype=torch.int32)
        count = size * case.ids
        drawn = [torch.randint(0, rows, (count,), generator=self._draw) for rows in case.table_rows.values()]
        values = torch.cat(drawn)
        bags = KeyedJaggedTensor(keys=self._names, values=values, lengths=bags_N)
        labels_BT = torch.randint(0, 2, (size, 1), generator=self._draw).float()
        return Batch(torch.randn(size, case.dense, generator=self._draw), bags, None, labels_BT)


class Trained(Contestant):
    """A case by ziggurat, assembled as in training."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        world = World.current()
        names = self._names
        experiment = experiment_of(case, names)
        schema = schema_of(case)
        layout = experiment.layout(schema)
        placements = placements_of(case, names, world)
        if experiment.towers is not None and transforms(experiment.parallel, world.hosts):
            placements = _by_tower(towers_of(experiment.towers, layout), world)
        plan = Plan(world.size, placements, world.local_size)
        self._recommender = assemble(experiment, layout, plan, CPU)
        self._recommender.train()
        optimizer = experiment.optimizer.build(self._recommender.dense_parameters())
        self._step = Stepper(self._recommender, optimizer, 0.0, None)
        self._pipelined = experiment.parallel.pipeline

    def _take(self, batches: list[Batch]) -> float:
        loss = torch.zeros(())
        cursors = [(batch, Cursor()) for batch in batches]
        for work, coming in prefetched_batches(cursors, self._recommender.lookup, CPU, self._pipelined):
            done = self._step(work, next(iter(coming), None))
            loss = done.loss / done.weight
        return float(loss)

    def input_seconds(self, count: int) -> float:
        """Returns the seconds that sending a batch's ids takes without other work."""
        lookup = self._recommender.lookup
        batches = [self._batch() for _ in range(count)]
        dist.barrier()
        started = time.perf_counter()
        for batch in batches:
            lookup.drop(lookup.start(batch))
        dist.barrier()
        return (time.perf_counter() - started) / count


def placements_of(case: Case, names: list[str], world: World) -> dict[str, Placement]:
    """Returns the placements of all tables: those of the case's plan; without one, tables take turns over the ranks or
    hosts that the sharding allows.

    Whole tables take turns over hosts first, so that no host has two more than another.
    """
    if case.plan is not None:
        return {name: Placement(sharding, tuple(ranks)) for name, (sharding, ranks) in case.plan.items()}
    every = tuple(range(world.size))
    found: dict[str, Placement] = {}
    for number, name in enumerate(names):
        match case.sharding:
            case "table_wise":
                host, place = number % world.hosts, number // world.hosts % world.local_size
                ranks: tuple[int, ...] = (host * world.local_size + place,)
            case "table_row_wise":
                first = number % world.hosts * world.local_size
                ranks = tuple(range(first, first + world.local_size))
            case _:
                ranks = every
        found[name] = Placement(case.sharding, ranks)
    return found


def _by_tower(towers: Towers, world: World) -> dict[str, Placement]:
    """Returns the placements of all tables, whole on the ranks of their tower's host in turn."""
    each = len(towers) // world.hosts
    found: dict[str, Placement] = {}
    for host in range(world.hosts):
        names = [name for tower in towers[host * each : (host + 1) * each] for name in tower]
        for number, name in enumerate(names):
            found[name] = Placement("table_wise", (host * world.local_size + number % world.local_size,))
    return found


def schema_of(case: Case) -> Schema:
    """Returns the schema of a case's data."""
    one, many = (case.names, ()) if case.ids == 1 else ((), case.names)
    tables = {name: name for name in case.names}
    return Schema(dense=_numbers(case), categorical=one, bags=many, tables=tables, rows=case.table_rows, labels=("y",))


def _numbers(case: Case) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(case.dense))


def experiment_of(case: Case, names: list[str]) -> Experiment:
    return Experiment.model_validate(
        {
            "name": "lab",
            "data": {
                "source": {"name": "csv", "files": ["none.csv"]},
                "split": {"name": "random"},
                "labels": [{"name": "y"}],
            },
            "features": [
                {"name": name, "kind": "categorical"}
                if case.ids == 1
                else {"name": name, "kind": "bag", "pooling": "sum"}
                for name in names
            ]
            + [{"name": name, "kind": "numeric", "transforms": [{"name": "standardise"}]} for name in _numbers(case)],
            "embeddings": {"dim": case.dim, "optimizer": dict(case.optimizer)},
            "model": dict(case.model or {"name": "dlrm", "top": {"hidden": list(case.hidden)}}),
            "towers": case.towers,
            "optimizer": {"name": "sgd", "lr": 0.01},
            "training": {"batch_size": case.batch_size, "device": "cpu"},
            "parallel": dict(case.parallel),
        }
    )


def sent_bytes() -> torch.Tensor:
    """Returns the bytes that all hosts have sent over their links and over their loopbacks, as a tensor (2,).

    A device that does not exist counts as 0.
    """
    mine = torch.zeros(2, dtype=torch.float64)
    world = World.current()
    if world.rank % world.local_size == 0:
        for place, device in enumerate((LINK, "lo")):
            path = Path(f"/sys/class/net/{device}/statistics/tx_bytes")
            mine[place] = float(path.read_text()) if path.exists() else 0.0
    dist.all_reduce(mine)
    return mine
