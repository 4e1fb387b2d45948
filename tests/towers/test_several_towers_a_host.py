"""Several towers of unequal widths on hosts of three ranks, with modules, equal one process.

Two hosts of two ranks, as elsewhere, would hide a divisor of hosts in place of one of ranks.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from tests.distributed.ranks import run_ranks
from tests.towers.test_tower_transform import CPU, DIM, NAMES, SCHEMA, batch
from ziggurat.core.plan import Placement, Plan
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.layout import Layout, lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.embeddings.tower_transform.transform import TowerTransform
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.world import World
from ziggurat.towers.modules.dlrm import DLRMTower
from ziggurat.training.process_group import process_group

TOWERS = [("h", "a"), ("g", "c", "e"), ("b",), ("f", "d")]
"""The first two are on host 0; each module emits a vector, and one more for each of its features."""
WIDTH, LOCAL = 3, 3
OUTPUTS = [1 + len(tower) for tower in TOWERS]


def modules() -> list[nn.Module]:
    torch.manual_seed(5)
    return [DLRMTower.Config(flat=1, each=1, width=WIDTH).build(len(tower), DIM) for tower in TOWERS]


def layout() -> Layout:
    config = EmbeddingsConfig.model_validate({"dim": DIM, "init_std": 0.5, "optimizer": {"name": "sgd", "lr": 0.1}})
    return lay_out(config, SCHEMA, {"g": "mean", "h": "sum"})


def plan() -> Plan:
    placements: dict[str, Placement] = {}
    for host in range(2):
        ranks = tuple(range(LOCAL * host, LOCAL * (host + 1)))
        for number, name in enumerate(TOWERS[2 * host] + TOWERS[2 * host + 1]):
            placements[name] = Placement("table_wise", (ranks[number % LOCAL],))
            if name == "a":
                placements[name] = Placement("table_row_wise", ranks)
            elif name == "d":
                placements[name] = Placement("column_wise", ranks[:2])
    return Plan(2 * LOCAL, placements, LOCAL)


def loss(rows: Tensor) -> Tensor:
    """Returns the mean over examples of a loss whose gradients differ between all numbers."""
    slopes = torch.linspace(-1, 1, rows[0].numel()).view(rows.shape[1:])
    return (rows.square() / 2 + rows * slopes).sum() / len(rows)


def trained_on_hosts(rank: int) -> dict[str, Any]:
    os.environ["LOCAL_WORLD_SIZE"] = str(LOCAL)
    found, world, made = layout(), World.current(), modules()
    towers = TowerTransform(found, TOWERS, world, CPU)
    lookup = EmbeddingLookup(found, plan(), CPU, 3, ParallelConfig(), towers=towers)
    towers.call([made[number] for number in towers.own], OUTPUTS, WIDTH, autocast=False)
    first = lookup(batch(0, rank, world.size))
    loss(first).backward()
    lookup.exchange()
    towers.average_gradients()
    gradients = {number: [each.grad for each in made[number].parameters()] for number in towers.own}
    return {"first": first.detach(), "second": lookup(batch(1, rank, world.size)).detach(), "gradients": gradients}


def test_towers_of_unequal_widths_on_hosts_of_three_ranks_equal_one_process() -> None:
    ranks = run_ranks(2 * LOCAL, trained_on_hosts)
    made = modules()
    with process_group(CPU):
        lookup = EmbeddingLookup(layout(), Plan.single_device(NAMES), CPU, 3, ParallelConfig())

        def compressed(step: int) -> Tensor:
            rows = lookup(batch(step, 0, 1))
            by_tower = [torch.stack([rows[:, NAMES.index(name)] for name in tower], 1) for tower in TOWERS]
            return torch.cat([module(each) for module, each in zip(made, by_tower, strict=True)], 1)

        first = compressed(0)
        loss(first).backward()
        lookup.exchange()
        second = compressed(1)
    torch.testing.assert_close(torch.cat([each["first"] for each in ranks]), first, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.cat([each["second"] for each in ranks]), second, rtol=0, atol=1e-6)
    assert [sorted(each["gradients"]) for each in ranks] == [[0, 1]] * LOCAL + [[2, 3]] * LOCAL
    for each in ranks:
        for number, gradients in each["gradients"].items():
            for gradient, parameter in zip(gradients, made[number].parameters(), strict=True):
                torch.testing.assert_close(gradient, parameter.grad, rtol=0, atol=1e-6)
