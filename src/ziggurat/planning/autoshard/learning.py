"""Trains a placement policy in imagination: tasks of pool tables, judged by the cost network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ziggurat.planning.autoshard.cost_network import EMBEDDING, CostNetwork
from ziggurat.planning.autoshard.policy import Learner, Policy
from ziggurat.planning.autoshard.pool import PoolTable
from ziggurat.planning.autoshard.task import Task
from ziggurat.planning.cost import state_bytes

DEVICES = (2, 3, 4, 6, 8)
ROOM = (1.1, 1.3, 2.0, 4.0)
"""Memory of the devices over what the tables need, evenly spread: tight to loose."""
EPISODES, TASKS = 10, 10
"""Of each task in an update, and tasks of a round."""
EXAMPLES_OF_STEP = 1024
OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad")


def imagined_task(network: CostNetwork, tables: Sequence[PoolTable], draw: np.random.Generator) -> Task:
    """10 to 100 tables of the pool on 2 to 8 devices, one optimizer for all."""
    count = round(np.exp(draw.uniform(np.log(10), np.log(100))))
    chosen = [tables[place] for place in draw.choice(len(tables), min(count, len(tables)), replace=False)]
    devices, room = int(draw.choice(DEVICES)), float(draw.choice(ROOM))
    optimizer = str(draw.choice(OPTIMIZERS))
    sizes = np.array([t.weight_bytes + state_bytes({"name": optimizer}, t.rows, t.dim) for t in chosen], np.float64)
    described = [table.described(table.dim, EXAMPLES_OF_STEP, optimizer) for table in chosen]
    free = max(sizes.sum() / devices * room, sizes.max())
    return Task(
        network=network,
        embedded_NE=network.embed(np.stack(described)),
        bytes_N=sizes,
        exchange_N=np.zeros(len(chosen)),
        free_D=np.full(devices, free),
        sums_DE=np.zeros((devices, EMBEDDING)),
        exchange_D=np.zeros(devices),
    )


def trained_policy(
    network: CostNetwork,
    tables: Sequence[PoolTable],
    rounds: int,
    origin: dict[str, Any],
    seed: int = 0,
    step: Callable[..., None] = lambda done, **figures: None,
) -> Policy:
    """A policy after so many rounds.

    Args:
        network: judges placements.
        tables: to make tasks of; those that a policy is tested on must not be among them.
        rounds: of ten tasks and ten episodes each.
        origin: where the network is from.
        seed: of tasks and episodes.
        step: is told each round that is done, and its mean reward.
    """
    draw, learner = np.random.default_rng(seed), Learner(Policy.untrained(seed), seed)
    for number in range(rounds):
        rewards: list[float] = []
        tasks = [imagined_task(network, tables, draw) for _ in range(TASKS)]
        learner.learn(tasks, EPISODES, rewards.append)
        step(number + 1, reward=f"{np.mean(rewards):.3f}")
    policy = learner.policy
    policy.origin = {**origin, "rounds": rounds, "tasks": TASKS, "episodes": EPISODES, "seed": seed}
    return policy
