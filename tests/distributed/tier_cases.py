"""Trains tables of row tiers for tests: on several ranks and in a single process, from the same batches."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.distributed.rank_parts import part
from ziggurat.core.batch import Batch
from ziggurat.core.plan import Plan
from ziggurat.core.row_order import FrequencyRanks, frequency_ranks
from ziggurat.core.schema import Schema
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.layout import Layout, Positions, lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.embeddings.offload import OffloadFolder
from ziggurat.interactions.sequences.sequence_pooling import TargetAttention
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.tensor_slices import gather

ROWS = {"user": 45, "item": 130, "tags": 24}
DIM, BATCH, POSITIONS = 8, 27, 6  # a batch that no number of ranks divides
CPU = torch.device("cpu")
SCHEMA = Schema(
    categorical=("user", "item"),
    bags=("tags",),
    sequences=("history",),
    tables={**{name: name for name in ROWS}, "history": "item"},
    rows=ROWS,
    labels=("y",),
)
RANKS: dict[str, FrequencyRanks] = {
    name: frequency_ranks(np.random.default_rng(rows).integers(0, 9, rows), rows) for name, rows in ROWS.items()
}
BY_RANK = {name: torch.from_numpy(np.argsort(ranks)) for name, ranks in RANKS.items()}
TIERS = {"user": (3, 9), "item": (10, 30), "tags": (5, 0)}
"""Rows copied to every rank and to every host; the rows of ``tags`` after the first are split over all ranks."""
OPTIMIZERS: list[dict[str, Any]] = [{"name": "sgd", "lr": 0.1}, {"name": "rowwise_adagrad", "lr": 0.1}]


def tiers_of(world_size: int, local_size: int, tiers: dict[str, tuple[int, int]] = TIERS) -> Plan:
    """Returns a plan with these tiers."""
    plan = Plan(world_size, {}, local_size)
    for table, (copied, hosts) in tiers.items():
        plan = plan.placed(table, "row_tiers", range(world_size), copied_rows=copied, host_rows=hosts)
    return plan


def layout_of(optimizer: dict[str, Any], *, positions: bool = True) -> Layout:
    """Returns the layout: a history by position beside a user and an item of the same table, and a bag of tags."""
    config = EmbeddingsConfig.model_validate({"dim": DIM, "init_std": 0.1, "optimizer": optimizer})
    history = Positions(TargetAttention.Config(target="item"), POSITIONS) if positions else "sum"
    return lay_out(config, SCHEMA, {"tags": "mean", "history": history})


def _drawn(table: str, count: int, draw: torch.Generator) -> Tensor:
    """Returns ids, the frequent ones more often."""
    ranks = (torch.rand(count, generator=draw) ** 3 * ROWS[table]).long()
    return BY_RANK[table][ranks]


def batch(step: int) -> Batch:
    """Returns the step's global batch."""
    draw = torch.Generator().manual_seed(step)
    lengths = [torch.ones(BATCH), torch.ones(BATCH), torch.randint(0, 4, (BATCH,), generator=draw)]
    values = [_drawn(name, int(each.sum()), draw) for name, each in zip(ROWS, lengths, strict=True)]
    bags = KeyedJaggedTensor(keys=[*ROWS], values=torch.cat(values), lengths=torch.cat(lengths).int())
    seen = torch.randint(0, POSITIONS + 3, (BATCH,), generator=draw)
    sequences = KeyedJaggedTensor(keys=["history"], values=_drawn("item", int(seen.sum()), draw), lengths=seen.int())
    return Batch(torch.zeros(BATCH, 0), bags, sequences, torch.zeros(BATCH, 1))


def lookup_of(
    plan: Plan,
    optimizer: dict[str, Any],
    parallel: ParallelConfig = ParallelConfig(),  # noqa: B008 - frozen
    offload: OffloadFolder | None = None,
) -> EmbeddingLookup:
    return EmbeddingLookup(layout_of(optimizer), plan, CPU, 3, parallel, BATCH, RANKS, offload)


def looked_up(lookup: EmbeddingLookup, whole: Batch, plan: Plan, step: int, *, ahead: bool) -> Tensor:
    """Returns the loss of this rank's part of a batch; keeps its rows in ``lookup.seen``."""
    rank = dist.get_rank()
    started = lookup.start(part(whole, rank, plan.world_size))
    if ahead:
        lookup.send_ids(started)
    rows = lookup.finish(started).by_feature
    lookup.seen = {name: each.detach().clone() for name, each in rows.items()}  # pyright: ignore[reportAttributeAccessIssue]
    losses = [(each * each.detach().sin() + each * torch.linspace(-1, 1, DIM)).sum() for each in rows.values()]
    return torch.stack(losses).sum() / BATCH


def trained(
    plan: Plan,
    optimizer: dict[str, Any],
    steps: int,
    parallel: ParallelConfig = ParallelConfig(),  # noqa: B008 - frozen
) -> dict[str, Any]:
    """Returns the rows that this rank looked up first, and after some steps the whole tables and states."""
    lookup = lookup_of(plan, optimizer, parallel)
    first: dict[str, Tensor] = {}
    unequal: list[str] = []
    for step in range(steps):
        loss = looked_up(lookup, batch(step), plan, step, ahead=bool(step % 2))
        first = first or lookup.seen  # pyright: ignore[reportAssignmentType]
        (loss * plan.world_size).backward()  # gradients are means over the ranks
        lookup.exchange()
        unequal += unequal_copies(lookup)
    wholes = gather(lookup.tensor_slices()), gather(lookup.state_slices())
    totals = lookup.tiered.traffic.totals() if lookup.tiered is not None else {}
    return {"first": first, "whole": wholes, "unequal": unequal, "traffic": totals}


def unequal_copies(lookup: EmbeddingLookup) -> list[str]:
    """Returns the slices that several ranks hold but not to the same bits."""
    if lookup.tiered is None:
        return []
    own = {
        (each.name, each.first, tuple(each.tensor.shape)): zlib.crc32(each.tensor.contiguous().numpy())
        for each in [*lookup.tiered.weights(), *lookup.tiered.states()]
    }
    held: list[dict[Any, int]] = [{}] * dist.get_world_size()
    dist.all_gather_object(held, own)
    return [str(key) for other in held for key, checksum in other.items() if own.get(key, checksum) != checksum]


def trained_all(rank: int, plans: dict[str, Plan], steps: int) -> dict[tuple[str, str], dict[str, Any]]:
    """Trains every plan with every optimizer in one process group."""
    return {
        (name, optimizer["name"]): trained(plan, optimizer, steps)
        for name, plan in plans.items()
        for optimizer in OPTIMIZERS
    }
