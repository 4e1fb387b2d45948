"""Trains a placement policy for a machine: measures its placements, and learns from these measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ziggurat.core.errors import ConfigError
from ziggurat.core.plan import Plan
from ziggurat.core.progress import Progress, Silent
from ziggurat.planning.autoshard.cost_network import CostNetwork
from ziggurat.planning.autoshard.costs import LearnedCosts
from ziggurat.planning.autoshard.learned import NETWORK, POLICY, proposer_path
from ziggurat.planning.autoshard.learning import (
    EPISODES,
    TASKS,
    SyntheticTask,
    draw_task,
    ratio_to_greedy,
    train_on_synthetic_tasks,
)
from ziggurat.planning.autoshard.planner import AutoShard
from ziggurat.planning.autoshard.policy import LR, Learner, Policy
from ziggurat.planning.autoshard.pool import PoolTable, table_pool, train_test_halves
from ziggurat.planning.autoshard.proposers import CHOOSING_TASKS, choose_proposers
from ziggurat.planning.autoshard.refinement import device_parts
from ziggurat.planning.problem import Problem
from ziggurat.policies.schedule import CyclicalRate
from ziggurat.training.placement import kernel_benchmark as kernels
from ziggurat.training.placement.kernel_benchmark import (
    PLACEMENTS,
    SAMPLES,
    LookupSet,
    TableRange,
    append_json_line,
    fit_network,
    measure_set,
    read_json_lines,
    single_threaded,
)

ROUNDS = 10
MEASURED_TASKS = 8
"""Tasks per round that are planned and measured, with a set of tables for each device."""
UPDATES = 50
"""Updates of the policy per round, each on ten tasks with ten episodes per task."""
SNAPSHOTS = "snapshots"
"""The folder of the policies after each round, kept if several propose."""


def train_policy(
    folder: Path,
    device: torch.device,
    rounds: int = ROUNDS,
    progress: Progress | None = None,
    pool: Sequence[PoolTable] | None = None,
    proposers: int = 1,
) -> Policy:
    """Trains the policy in ``folder`` up to a number of rounds and returns it; rounds done earlier are not repeated.

    A round places some synthetic tasks with the policy and measures the lookups of every device. It then fits the cost
    network again, to everything that was ever measured, and trains the policy on tasks whose costs that network
    predicts (DreamShard, arXiv 2210.02023, algorithm 1). An interrupted round is repeated except for its measurements;
    the optimizer's moments start at zero in every round.

    Args:
        folder: the folder with the samples of :func:`~ziggurat.training.placement.kernel_benchmark.measure`, which are
            measured first if there are none. The network and the policy are written after each round.
        device: the device to measure, as for ``measure``.
        rounds: total number of rounds.
        progress: where to show progress.
        pool: the tables to make tasks of; default: the training half of the pool.
        proposers: if more than 1, each round is a cycle of the learning rate and leaves a snapshot. After the last
            round, so many of them are chosen, on tasks of their own, to propose together, and are written beside the
            policy.

    Raises:
        ConfigError: there are fewer rounds than proposers, or rounds were trained in the folder without snapshots.
    """
    if proposers > rounds:
        raise ConfigError(f"{proposers} proposers of {rounds} rounds, each of which leaves one", "choose fewer")
    progress, tables = progress or Silent(), train_test_halves(table_pool())[0] if pool is None else tuple(pool)
    sets = len(read_json_lines(folder / SAMPLES)) if (folder / NETWORK).is_file() else 0
    network = kernels.measure(folder, device, sets or kernels.SETS, progress, tables)
    policy = Policy.load(folder / POLICY) if (folder / POLICY).is_file() else Policy.untrained()
    done = int(policy.origin.get("rounds", 0))
    snapshots = [folder / SNAPSHOTS / f"round-{number + 1:02}.safetensors" for number in range(rounds)]
    if proposers > 1 and not all(path.is_file() for path in snapshots[:done]):
        raise ConfigError(
            f"{folder}: {done} rounds were trained without snapshots, which {proposers} proposers are chosen from",
            "name another folder in planning.planner.learned",
        )
    progress.start("policy", rounds, "rounds")
    for number in range(done, rounds):
        random = np.random.default_rng(number)
        planner = AutoShard(AutoShard.Config(replicate_up_to=1), LearnedCosts(network), [policy])
        _measure_plans(folder, device, planner, tables, number, progress)
        network = fit_network(folder, device, progress)
        learner, rewards = Learner(policy, number), list[float]()
        progress.start("learn", UPDATES, "updates")
        cycle = CyclicalRate(LR, UPDATES, 1)
        for update in range(UPDATES):
            if proposers > 1:
                learner.set_rate(cycle.rate(update + 1))
            rewards.append(train_on_synthetic_tasks(learner, network, tables, random))
            progress.advance(update + 1)
        progress.finish()
        policy = learner.policy
        policy.origin = _origin(network, number + 1, ratio_to_greedy(policy, network, tables))
        if proposers > 1:
            policy.save(snapshots[number])
        policy.save(folder / POLICY)
        progress.advance(number + 1, reward=f"{rewards[-1]:.3f}", over_greedy=f"{policy.origin['over_greedy']:.3f}")
    progress.finish()
    if proposers > 1:
        _choose_proposers(folder, snapshots, network, tables, proposers)
    return policy


def _choose_proposers(
    folder: Path, snapshots: Sequence[Path], network: CostNetwork, tables: Sequence[PoolTable], proposers: int
) -> None:
    """Chooses snapshots on tasks that nothing was trained on, and writes them in place of earlier proposers."""
    random = np.random.default_rng([0, 2])
    tasks = [draw_task(tables, random).task(network) for _ in range(CHOOSING_TASKS)]
    policies = [Policy.load(path) for path in snapshots]
    chosen = choose_proposers(policies, tasks, proposers)
    stale = len(chosen.members) + 1
    while (path := proposer_path(folder, stale)).is_file():
        path.unlink()
        path.with_suffix(".json").unlink(missing_ok=True)
        stale += 1
    for number, place in enumerate(chosen.members, 1):
        policies[place].save(proposer_path(folder, number))


def _measure_plans(
    folder: Path,
    device: torch.device,
    planner: AutoShard,
    tables: Sequence[PoolTable],
    number: int,
    progress: Progress,
) -> None:
    """Measures each device under the plans of round ``number``, except what an interrupted round has measured."""
    path, random = folder / PLACEMENTS, np.random.default_rng([number, 1])
    kind = "cuda" if device.type == "cuda" else "cpu"
    sets: list[LookupSet] = []
    for _ in range(MEASURED_TASKS):
        task = draw_task(tables, random)
        problem = task.problem(kind)
        drawn = device_sets(task, problem, planner.plan(problem))
        sets += [lookups for lookups in drawn if lookups.bytes <= kernels.MAX_BYTES]
    done = sum(line.get("round") == number for line in read_json_lines(path))
    with single_threaded(device):
        for index, lookups in enumerate(sets[done:], done):
            append_json_line(path, {"round": number, **measure_set(lookups, device, index)})
            progress.advance(number + (index + 1) / len(sets) / 2)


def device_sets(task: SyntheticTask, problem: Problem, plan: Plan) -> list[LookupSet]:
    """Returns the lookups of each device that holds a table; the plan must not replicate tables."""
    tables = {spec.name: table for table, spec in zip(task.tables, problem.tables, strict=True)}
    examples = problem.batch_size * plan.world_size
    return [
        LookupSet(
            tuple(TableRange(tables[spec.name], shard.rows, shard.columns.size) for spec, shard in parts),
            examples,
            task.optimizer,
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
