"""The tower transform computes what the flat exchange computes, rows and weights; its traps are caught here.

Processes of this machine act as hosts: each has the ranks and the LOCAL_WORLD_SIZE that a launcher would give it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.distributed.ranks import run_ranks
from ziggurat.core.batch import Batch
from ziggurat.core.plan import Placement, Plan
from ziggurat.core.schema import Schema
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.layout import lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.embeddings.tower_transform import exchanges, transform
from ziggurat.embeddings.tower_transform.transform import TowerTransform
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.tensor_slices import gather
from ziggurat.parallel.world import World
from ziggurat.training.process_group import process_group

NAMES = tuple("abcdefgh")
ROWS = {name: 11 + 6 * number for number, name in enumerate(NAMES)}
SCHEMA = Schema(
    categorical=NAMES[:6],
    bags=NAMES[6:],
    sequences=(),
    tables={name: name for name in NAMES},
    rows=ROWS,
    labels=("y",),
)
DIM, STEPS, BATCH = 4, 50, 48
OPTIMIZERS: list[dict[str, Any]] = [{"name": "sgd", "lr": 0.1}, {"name": "rowwise_adagrad", "lr": 0.05}]
CPU = torch.device("cpu")
LARGER = [(8, 4), (8, 2), (6, 3)]


def batch(step: int, rank: int, world_size: int) -> Batch:
    """Returns a rank's part of the step's batch; every row has one id of six features, and two of the other two."""
    draw = torch.Generator().manual_seed(step)
    ids = {name: torch.randint(0, ROWS[name], (BATCH, 1 + (name in "gh")), generator=draw) for name in NAMES}
    start, stop = BATCH * rank // world_size, BATCH * (rank + 1) // world_size
    values = [each[start:stop] for each in ids.values()]
    lengths = torch.cat([torch.full((stop - start,), each.shape[1]) for each in values])
    bags = KeyedJaggedTensor(keys=[*NAMES], values=torch.cat([each.flatten() for each in values]), lengths=lengths)
    return Batch(torch.zeros(stop - start, 0), bags, None, torch.zeros(stop - start, 1))


def towers_of(hosts: int) -> list[tuple[str, ...]]:
    """Returns towers that are no runs of the schema's features: the output must be put into its order."""
    return [NAMES[host::hosts] for host in range(hosts)]


def plan_of(world_size: int, local_size: int) -> Plan:
    """Returns a plan with the tables of a tower on its host, one of each split by rows if it has several."""
    placements: dict[str, Placement] = {}
    for host, tower in enumerate(towers_of(world_size // local_size)):
        ranks = tuple(range(host * local_size, (host + 1) * local_size))
        split = [name for name in tower if name != "g"][-1]
        for number, name in enumerate(tower):
            by_rows = name == split and len(tower) > 1
            placements[name] = (
                Placement("table_row_wise", ranks) if by_rows else Placement("table_wise", (ranks[number % local_size],))
            )
    return Plan(world_size, placements, local_size)


def trained(rank: int, plan: Plan, optimizer: dict[str, Any], *, by_towers: bool) -> dict[str, Any]:
    """Returns the fields of this rank's rows in the first step, and all weights and states after the last."""
    os.environ["LOCAL_WORLD_SIZE"] = str(plan.local_size)
    config = EmbeddingsConfig.model_validate({"dim": DIM, "init_std": 0.1, "optimizer": optimizer})
    layout = lay_out(config, SCHEMA, {"g": "mean", "h": "sum"})
    world = World.current()
    towers = TowerTransform(layout, towers_of(world.hosts), world, CPU) if by_towers else None
    lookup = EmbeddingLookup(layout, plan, CPU, 3, ParallelConfig(), towers=towers)
    target_FD = torch.linspace(-1, 1, len(NAMES) * DIM).view(len(NAMES), DIM)
    fields: Tensor | None = None
    for step in range(STEPS):
        emb_BFD = lookup(batch(step, rank, plan.world_size))
        fields = emb_BFD.detach().clone() if fields is None else fields
        loss = (emb_BFD * emb_BFD.detach().sin() + emb_BFD * target_FD).sum() / BATCH
        (loss * plan.world_size).backward()  # exchanges divide gradients by the number of ranks
        lookup.exchange()
    return {"fields": fields, "whole": (gather(lookup.tensor_slices()), gather(lookup.state_slices()))}


def trained_all(rank: int, world_size: int, local_size: int) -> list[dict[str, Any]]:
    plan = plan_of(world_size, local_size)
    return [trained(rank, plan, optimizer, by_towers=True) for optimizer in OPTIMIZERS]


def flat(optimizer: dict[str, Any]) -> dict[str, Any]:
    with process_group(CPU):
        return trained(0, Plan.single_device(NAMES), optimizer, by_towers=False)


def weights(found: dict[str, Any]) -> dict[str, Tensor]:
    tables, states = found["whole"]
    return {**tables, **{name: each for name, each in states.items() if each.ndim}}


@pytest.mark.parametrize(("world_size", "local_size"), [(4, 2), *LARGER], ids=lambda each: str(each))
def test_rows_and_weights_equal_the_flat_exchange(world_size: int, local_size: int) -> None:
    found = run_ranks(world_size, trained_all, world_size, local_size)
    for number, optimizer in enumerate(OPTIMIZERS):
        expected = flat(optimizer)
        fields = torch.cat([ranks[number]["fields"] for ranks in found])
        torch.testing.assert_close(fields, expected["fields"], rtol=0, atol=0)
        ours, theirs = weights(found[0][number]), weights(expected)
        assert ours.keys() == theirs.keys()
        for name, each in theirs.items():
            torch.testing.assert_close(ours[name], each, rtol=0, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")
