"""Trains a placement policy for a machine: what it would place is measured for real, and costs are learned again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ziggurat.core.plan import Plan
from ziggurat.core.progress import Progress, Silent
from ziggurat.planning.autoshard.cost_network import CostNetwork
from ziggurat.planning.autoshard.costs import LearnedCosts
from ziggurat.planning.autoshard.learned import NETWORK, POLICY
from ziggurat.planning.autoshard.learning import (
    EPISODES,
    TASKS,
    SyntheticTask,
    draw_task,
    ratio_to_greedy,
    train_on_synthetic_tasks,
)
from ziggurat.planning.autoshard.planner import AutoShard
from ziggurat.planning.autoshard.policy import Learner, Policy
from ziggurat.planning.autoshard.pool import PoolTable, table_pool, train_test_halves
from ziggurat.planning.autoshard.refinement import device_parts
from ziggurat.planning.problem import Problem
from ziggurat.training.placement import kernel_benchmark as kernels
from ziggurat.training.placement.kernel_benchmark import (
    PLACEMENTS,
    SAMPLES,
    Draw,
    TableRange,
    fitted,
    measured,
    note,
    noted,
    one_thread,
)

ROUNDS = 10
MEASURED = 8
"""Tasks that a round plans for and measures, a set of tables for each device."""
UPDATES = 50
"""Of the policy in a round, by ten tasks and ten episodes each."""


def train_policy(
    folder: Path,
    device: torch.device,
    rounds: int = ROUNDS,
    progress: Progress | None = None,
    pool: Sequence[PoolTable] | None = None,
) -> Policy:
    """The policy in ``folder`` after so many rounds; those that were done earlier are not repeated.

    A round places some synthetic tasks by the policy and measures what every device would then look up, fits the cost
    network again to all that was ever measured, and trains the policy in imagination, judged by that network
    (DreamShard, arXiv 2210.02023, algorithm 1). An interrupted round is begun again, but for what it has measured; the
    optimizer's moments start anew with it.

    Args:
        folder: with the samples of :func:`~ziggurat.training.placement.kernel_benchmark.measure`; measured first where
            there are none.
            The network is fitted again, and the policy written, after each round.
        device: as there.
        rounds: in all.
        progress: where to show it.
        pool: tables to make tasks of; default: the half of the pool that is for learning.
    """
    progress, tables = progress or Silent(), train_test_halves(table_pool())[0] if pool is None else tuple(pool)
    there = len(noted(folder / SAMPLES)) if (folder / NETWORK).is_file() else 0
    network = kernels.measure(folder, device, there or kernels.SETS, progress, tables)
    policy = Policy.load(folder / POLICY) if (folder / POLICY).is_file() else Policy.untrained()
    done = int(policy.origin.get("rounds", 0))
    progress.start("policy", rounds, "rounds")
    for number in range(done, rounds):
        draw = np.random.default_rng(number)
        planner = AutoShard(AutoShard.Config(replicate_up_to=1), LearnedCosts(network), policy)
        _measure_plans(folder, device, planner, tables, number, progress)
        network = fitted(folder, device, progress)
        learner, rewards = Learner(policy, number), list[float]()
        progress.start("imagine", UPDATES, "updates")
        for update in range(UPDATES):
            rewards.append(train_on_synthetic_tasks(learner, network, tables, draw))
            progress.advance(update + 1)
        progress.finish()
        policy = learner.policy
        policy.origin = _origin(network, number + 1, ratio_to_greedy(policy, network, tables))
        policy.save(folder / POLICY)
        progress.advance(number + 1, reward=f"{rewards[-1]:.3f}", over_greedy=f"{policy.origin['over_greedy']:.3f}")
    progress.finish()
    return policy


def _measure_plans(
    folder: Path,
    device: torch.device,
    planner: AutoShard,
    tables: Sequence[PoolTable],
    number: int,
    progress: Progress,
) -> None:
    """Measure each device under a round's plans, but for what an interrupted round has measured already."""
    path, draw = folder / PLACEMENTS, np.random.default_rng([number, 1])
    kind = "cuda" if device.type == "cuda" else "cpu"
    sets: list[Draw] = []
    for _ in range(MEASURED):
        found = draw_task(tables, draw)
        problem = found.problem(kind)
        sets += [
            each for each in device_sets(found, problem, planner.plan(problem)) if each.bytes <= kernels.MOST_BYTES
        ]
    there = sum(line["round"] == number for line in noted(path))
    with one_thread(device):
        for place, each in enumerate(sets[there:], there):
            note(path, {"round": number, **measured(each, device, place)})
            progress.advance(number + (place + 1) / len(sets) / 2)


def device_sets(found: SyntheticTask, problem: Problem, plan: Plan) -> list[Draw]:
    """What each device that has any table looks up; none is on every device."""
    tables = {spec.name: table for table, spec in zip(found.tables, problem.tables, strict=True)}
    examples = problem.batch_size * plan.world_size
    return [
        Draw(
            tuple(TableRange(tables[spec.name], shard.rows, shard.columns.size) for spec, shard in parts),
            examples,
            found.optimizer,
        )
        for parts in device_parts(problem, plan)
        if parts
    ]


def _origin(network: CostNetwork, rounds: int, ratio: float) -> dict[str, Any]:
    return {
        **{key: network.origin[key] for key in ("machine", "kind", "date", "versions")},
        "rounds": rounds,
        "updates": UPDATES,
        "tasks": TASKS,
        "episodes": EPISODES,
        "over_greedy": ratio,
    }
