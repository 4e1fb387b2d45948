"""Trains a placement policy in imagination: tasks of pool tables, judged by the cost network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ziggurat.planning.autoshard.cost_network import EMBEDDING, CostNetwork
from ziggurat.planning.autoshard.policy import Learner, Policy
from ziggurat.planning.autoshard.pool import PoolTable
from ziggurat.planning.autoshard.task import Task, greedy
from ziggurat.planning.cost import state_bytes

DEVICES = (2, 3, 4, 6, 8)
ROOM = (1.1, 1.3, 2.0, 4.0)
"""Memory of the devices over what the tables need, evenly spread: tight to loose."""
EPISODES, TASKS = 10, 10
"""Of each task in an update, and tasks of an update."""
EXAMPLES = 1024
"""Of a step."""
OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad")


@dataclass(frozen=True)
class Imagined:
    """A task and what it is made of.

    Attributes:
        tables: of the pool, whole, an item each.
        optimizer: of all of them.
        task: to place them.
    """

    tables: tuple[PoolTable, ...]
    optimizer: str
    task: Task


def imagined(network: CostNetwork, tables: Sequence[PoolTable], draw: np.random.Generator) -> Imagined:
    """10 to 100 tables of the pool on 2 to 8 devices, one optimizer for all."""
    count = round(np.exp(draw.uniform(np.log(10), np.log(100))))
    chosen = tuple(tables[place] for place in draw.choice(len(tables), min(count, len(tables)), replace=False))
    devices, room = int(draw.choice(DEVICES)), float(draw.choice(ROOM))
    optimizer = str(draw.choice(OPTIMIZERS))
    sizes = np.array([t.weight_bytes + state_bytes({"name": optimizer}, t.rows, t.dim) for t in chosen], np.float64)
    described = [table.described(table.dim, EXAMPLES, optimizer) for table in chosen]
    free = max(sizes.sum() / devices * room, sizes.max())
    task = Task(
        network=network,
        embedded_NE=network.embed(np.stack(described)),
        bytes_N=sizes,
        exchange_N=np.zeros(len(chosen)),
        free_D=np.full(devices, free),
        sums_DE=np.zeros((devices, EMBEDDING)),
        exchange_D=np.zeros(devices),
    )
    return Imagined(chosen, optimizer, task)


def dream(learner: Learner, network: CostNetwork, tables: Sequence[PoolTable], draw: np.random.Generator) -> float:
    """One update of the policy for each of ten imagined tasks, ten episodes each; the mean reward."""
    rewards: list[float] = []
    learner.learn([imagined(network, tables, draw).task for _ in range(TASKS)], EPISODES, rewards.append)
    return float(np.mean(rewards))


def over_greedy(policy: Policy, network: CostNetwork, tables: Sequence[PoolTable], tasks: int = 50) -> float:
    """Predicted time of the policy's likeliest placements over that of greedy ones, the mean over some tasks."""
    draw = np.random.default_rng(0)
    ratios: list[float] = []
    for _ in range(tasks):
        task = imagined(network, tables, draw).task
        ratios.append(task.seconds(policy.place(task, 1, None).device_PN[0]) / task.seconds(greedy(task)))
    return float(np.mean(ratios))
