"""The traffic of the cost model equals what TorchRec and the replicated tables send, to the byte."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.distributed.ranks import run_ranks
from ziggurat.core.batch import Batch
from ziggurat.core.plan import Placement, Plan, Sharding
from ziggurat.core.schema import Schema
from ziggurat.core.statistics import DatasetStatistics, TableStatistics
from ziggurat.core.topology import Topology
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.layout import Layout, lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.planning.problem import Problem

HOSTS, DEVICES, BATCH, ROWS, DIM = 2, 2, 6, 64, 16
WORLD = HOSTS * DEVICES
PLACEMENTS: dict[str, tuple[Sharding, tuple[int, ...]]] = {
    "table_wise": ("table_wise", (1,)),
    "row_wise": ("row_wise", (0, 1, 2, 3)),
    "column_wise": ("column_wise", (0, 3)),
    "table_row_wise": ("table_row_wise", (2, 3)),
    "grid": ("grid", (0, 1, 2, 3)),
    "data_parallel": ("data_parallel", (0, 1, 2, 3)),
}


def layout() -> Layout:
    """Returns a layout with two bags of one table."""
    schema = Schema(bags=("a", "b"), tables={"a": "t", "b": "t"}, rows={"t": ROWS}, labels=("y",))
    config = EmbeddingsConfig.model_validate({"dim": DIM, "optimizer": {"name": "sgd"}})
    return lay_out(config, schema, {"a": "sum", "b": "sum"})


def bags() -> KeyedJaggedTensor:
    """Returns the batch of every rank; all look up the same ids, so that means are exact."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, 5, (2 * BATCH,), generator=draw, dtype=torch.int32)
    ids = (torch.rand(int(lengths.sum()), generator=draw) ** 3 * ROWS).long()
    return KeyedJaggedTensor(keys=["a", "b"], values=ids, lengths=lengths)


def counted(statistics: KeyedJaggedTensor) -> DatasetStatistics:
    accesses = torch.bincount(statistics.values(), minlength=ROWS).numpy()
    return DatasetStatistics(rows={"train": BATCH}, label_rates={}, tables={"t": TableStatistics("t", ROWS, accesses)})


def plan_of(name: str) -> Plan:
    return Plan(WORLD, {"t": Placement(*PLACEMENTS[name])}, DEVICES)


class TrafficCounter:
    """Counts this rank's bytes to each other rank, and the payload of all-reduces. Message sizes, which are sent before
    ids, are left out."""

    def __init__(self) -> None:
        self.to, self.reduced = [0] * WORLD, 0
        for name in ("all_to_all_single", "reduce_scatter_tensor", "all_gather_into_tensor", "all_reduce"):
            setattr(dist, name, self._counted(name, getattr(dist, name)))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(real)

        def call(*arguments: Any, **keywords: Any) -> Any:
            given = signature.bind(*arguments, **keywords).arguments
            getattr(self, name)(given)
            return real(*arguments, **keywords)

        return call

    def all_to_all_single(self, given: dict[str, Any]) -> None:
        splits = given.get("input_split_sizes")
        if splits is not None:
            for place, other in others(given.get("group")):
                self.to[other] += splits[place] * given["input"][0:1].nbytes

    def reduce_scatter_tensor(self, given: dict[str, Any]) -> None:
        for _, other in others(given.get("group")):
            self.to[other] += given["output"].nbytes

    def all_gather_into_tensor(self, given: dict[str, Any]) -> None:
        for _, other in others(given.get("group")):
            self.to[other] += given["input_tensor"].nbytes

    def all_reduce(self, given: dict[str, Any]) -> None:
        self.reduced += given["tensor"].nbytes


def others(group: Any) -> list[tuple[int, int]]:
    """Returns (position in the group, global rank) of the other members of a group."""
    members = [
        place if group is None else dist.get_global_rank(group, place) for place in range(dist.get_world_size(group))
    ]
    return [(place, rank) for place, rank in enumerate(members) if rank != dist.get_rank()]


def sent(rank: int) -> dict[str, tuple[list[int], int]]:
    """Returns for each placement this rank's bytes to each other rank per step, and the payload of its all-reduces."""
    found: dict[str, tuple[list[int], int]] = {}
    ear = TrafficCounter()
    for name in PLACEMENTS:
        lookup = EmbeddingLookup(layout(), plan_of(name), torch.device("cpu"), 0)
        ear.to, ear.reduced = [0] * WORLD, 0
        batch = Batch(torch.zeros(BATCH, 0), bags(), None, torch.zeros(BATCH, 1))
        lookup(batch).sum().backward()
        lookup.exchange()
        found[name] = ear.to, ear.reduced
    return found


def modelled(name: str) -> tuple[float, float]:
    """Returns the modelled bytes within hosts and between them."""
    topology = Topology(HOSTS, DEVICES, "test", "cpu", 10**9, 1.0, 1.0, 1.0)
    problem = Problem(layout().tables, topology, counted(bags()), BATCH)
    costs = [cost for _, cost in problem.costs(problem.tables[0], plan_of(name))]
    return sum(cost.intra_bytes for cost in costs), sum(cost.inter_bytes for cost in costs)


def test_the_model_counts_what_is_sent() -> None:
    ranks = run_ranks(WORLD, sent)
    for name in PLACEMENTS:
        near = far = 0
        for rank, found in enumerate(ranks):
            for other, size in enumerate(found[name][0]):
                near, far = (near + size, far) if rank // DEVICES == other // DEVICES else (near, far + size)
        if name == "data_parallel":
            payload = ranks[0][name][1]
            assert payload == ROWS * 4 * (DIM + 1)
            ring = 2 * (WORLD - 1) / WORLD * payload  # leaves each rank
            near, far = 2 * ring, 2 * ring  # a ring through two hosts crosses twice
        assert (near, far) == pytest.approx(modelled(name)), name
