"""Trains a placement policy in imagination: tasks of pool tables, judged by the cost network."""

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
ROOM = (1.1, 1.3, 2.0, 4.0)
"""Memory of the devices over what the tables need, evenly spread: tight to loose."""
EPISODES, TASKS = 10, 10
"""Of each task in an update, and tasks of an update."""
EXAMPLES = 1024
"""Of a step."""
OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad")


@dataclass(frozen=True)
class Imagined:
    """Tables to be placed on devices.

    Attributes:
        tables: of the pool.
        optimizer: of all of them.
        devices: how many.
        room: of :data:`ROOM`.
    """

    tables: tuple[PoolTable, ...]
    optimizer: str
    devices: int
    room: float

    def task(self, network: CostNetwork) -> Task:
        """To place the tables whole."""
        optimizer, tables = self.optimizer, self.tables
        sizes = np.array([t.weight_bytes + state_bytes({"name": optimizer}, t.rows, t.dim) for t in tables], np.float64)
        described = [table.described(table.dim, EXAMPLES, optimizer) for table in tables]
        free = max(sizes.sum() / self.devices * self.room, sizes.max())
        return Task(
            network=network,
            embedded_NE=network.embed(np.stack(described)),
            bytes_N=sizes,
            exchange_N=np.zeros(len(tables)),
            free_D=np.full(self.devices, free),
            sums_DE=np.zeros((self.devices, EMBEDDING)),
            exchange_D=np.zeros(self.devices),
        )

    def problem(self, kind: DeviceKind, examples: int = EXAMPLES) -> Problem:
        """To place them as a planner likes, by kernels alone: exchanges take no time worth mentioning.

        Args:
            kind: of the devices.
            examples: of a step, all devices' together; a few less where they cannot be shared evenly.
        """
        specs = tuple(table.spec(self.optimizer) for table in self.tables)
        topology = Topology(1, self.devices, "imagined", kind, 10**15, 1e10, 1e15, 1e15)
        loose = Problem(specs, topology, statistics(self.tables), examples // self.devices, reserve=0)
        kept = [loose.whole(spec).kept_bytes for spec in specs]
        memory = max(self.room * sum(kept) / self.devices, 1.02 * max(kept)) + loose.client_bytes
        return loose.but(topology=replace(topology, memory_bytes=int(memory)))


def imagined(tables: Sequence[PoolTable], draw: np.random.Generator, least: int = 10, most: int = 100) -> Imagined:
    """So many tables of the pool on 2 to 8 devices, one optimizer for all."""
    count = min(round(np.exp(draw.uniform(np.log(least), np.log(most)))), len(tables))
    chosen = tuple(tables[place] for place in draw.choice(len(tables), count, replace=False))
    return Imagined(chosen, str(draw.choice(OPTIMIZERS)), int(draw.choice(DEVICES)), float(draw.choice(ROOM)))


def dream(learner: Learner, network: CostNetwork, tables: Sequence[PoolTable], draw: np.random.Generator) -> float:
    """One update of the policy for each of ten imagined tasks, ten episodes each; the mean reward."""
    rewards: list[float] = []
    learner.learn([imagined(tables, draw).task(network) for _ in range(TASKS)], EPISODES, rewards.append)
    return float(np.mean(rewards))


def over_greedy(policy: Policy, network: CostNetwork, tables: Sequence[PoolTable], tasks: int = 50) -> float:
    """Predicted time of the policy's likeliest placements over that of greedy ones, the mean over some tasks."""
    draw = np.random.default_rng(0)
    ratios: list[float] = []
    for _ in range(tasks):
        task = imagined(tables, draw).task(network)
        ratios.append(task.seconds(policy.place(task, 1, None).device_PN[0]) / task.seconds(greedy(task)))
    return float(np.mean(ratios))
