"""Trains a placement policy on synthetic tasks, made of pool tables and evaluated by the cost network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ziggurat.core.topology import DeviceKind, Topology
from ziggurat.planning.autoshard.cost_network import EMBEDDING, CostNetwork
from ziggurat.planning.autoshard.policy import Learner, Policy
from ziggurat.planning.autoshard.pool import PoolTable, statistics
from ziggurat.planning.autoshard.task import Task, greedy
from ziggurat.planning.cost import state_bytes
from ziggurat.planning.problem import Problem

DEVICES = (2, 3, 4, 6, 8)
MEMORY_FACTORS = (1.1, 1.3, 2.0, 4.0)
"""Memory of all devices divided by the bytes that the tables need, from tight to loose."""
EPISODES, TASKS = 10, 10
"""Episodes of each task in an update, and tasks in a call of :func:`train_on_synthetic_tasks`."""
EXAMPLES = 1024
"""Examples of a step."""
OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad")


@dataclass(frozen=True)
class SyntheticTask:
    """Pool tables to be placed on devices.

    Attributes:
        tables: the tables.
        optimizer: name of the optimizer of all tables.
        devices: number of devices.
        memory_factor: one of :data:`MEMORY_FACTORS`.
    """

    tables: tuple[PoolTable, ...]
    optimizer: str
    devices: int
    memory_factor: float

    def task(self, network: CostNetwork) -> Task:
        """Returns the assignment problem of placing the tables, whole, on the devices."""
        optimizer, tables = self.optimizer, self.tables
        sizes = np.array([t.weight_bytes + state_bytes({"name": optimizer}, t.rows, t.dim) for t in tables], np.float64)
        features = [table.feature_vector(table.dim, EXAMPLES, optimizer) for table in tables]
        free = max(sizes.sum() / self.devices * self.memory_factor, sizes.max())
        return Task(
            network=network,
            embedded_NE=network.embed(np.stack(features)),
            bytes_N=sizes,
            exchange_N=np.zeros(len(tables)),
            free_D=np.full(self.devices, free),
            sums_DE=np.zeros((self.devices, EMBEDDING)),
            exchange_D=np.zeros(self.devices),
        )

    def problem(self, kind: DeviceKind, examples: int = EXAMPLES) -> Problem:
        """Returns the problem for a planner, which may also split tables. Exchanges take negligible time.

        Args:
            kind: kind of the devices.
            examples: examples of a step over all devices; rounded down to a multiple of the devices.
        """
        specs = tuple(table.spec(self.optimizer) for table in self.tables)
        topology = Topology(1, self.devices, "draw_task", kind, 10**15, 1e10, 1e15, 1e15)
        loose = Problem(specs, topology, statistics(self.tables), examples // self.devices, reserve=0)
        kept = [loose.whole(spec).kept_bytes for spec in specs]
        memory = max(self.memory_factor * sum(kept) / self.devices, 1.02 * max(kept)) + loose.client_bytes
        return loose.but(topology=replace(topology, memory_bytes=int(memory)))


def draw_task(
    tables: Sequence[PoolTable], draw: np.random.Generator, least: int = 10, most: int = 100
) -> SyntheticTask:
    """Draws a task of ``least`` to ``most`` pool tables on 2 to 8 devices, with one optimizer for all tables."""
    count = min(round(np.exp(draw.uniform(np.log(least), np.log(most)))), len(tables))
    chosen = tuple(tables[place] for place in draw.choice(len(tables), count, replace=False))
    return SyntheticTask(
        chosen, str(draw.choice(OPTIMIZERS)), int(draw.choice(DEVICES)), float(draw.choice(MEMORY_FACTORS))
    )


def train_on_synthetic_tasks(
    learner: Learner, network: CostNetwork, tables: Sequence[PoolTable], draw: np.random.Generator
) -> float:
    """Updates the policy once for each of ten synthetic tasks, with ten episodes each; returns the mean reward."""
    rewards: list[float] = []
    learner.learn([draw_task(tables, draw).task(network) for _ in range(TASKS)], EPISODES, rewards.append)
    return float(np.mean(rewards))


def ratio_to_greedy(policy: Policy, network: CostNetwork, tables: Sequence[PoolTable], tasks: int = 50) -> float:
    """Returns the mean ratio of the predicted times of the policy's likeliest placements and of greedy ones."""
    draw = np.random.default_rng(0)
    ratios: list[float] = []
    for _ in range(tasks):
        task = draw_task(tables, draw).task(network)
        ratios.append(task.seconds(policy.place(task, 1, None).device_PN[0]) / task.seconds(greedy(task)))
    return float(np.mean(ratios))
