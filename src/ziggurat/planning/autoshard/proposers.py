"""Several placement policies that propose; the costs dispose.

The snapshots of one training in cycles (:mod:`ziggurat.policies.schedule`) are chosen by how good and how different
they are on tasks that are not trained on. Each then proposes its likeliest placement and some drawn ones, and the
planner takes whichever costs least. Members that act together have to agree at each step; proposers need not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ziggurat.planning.autoshard.policy import Policy
from ziggurat.planning.autoshard.task import Floats, Ints, Task, greedy
from ziggurat.policies.actions import Categorical, divergence_matrix
from ziggurat.policies.selection import Selection, select

CHOOSING_TASKS = 20
"""Tasks on which proposers are chosen."""
DIVERSITY = 1.0
"""λ of that choice."""
TOLERANCE = 1.0
"""δ of that choice, as a share of the range of the returns: all take part, so that as many are chosen as were asked
for. A proposer that is worse than others costs little, as the costs take the best placement of all."""


def proposals(policies: Sequence[Policy], task: Task, rollouts: int, draw: np.random.Generator) -> list[Ints]:
    """Returns placements: the likeliest one of each policy, then drawn ones, in equal shares of each policy.

    Args:
        policies: one or more.
        task: the assignment problem.
        rollouts: how many placements are drawn in all.
        draw: draws them.
    """
    found = [policy.place(task, 1, None).device_PN[0] for policy in policies]
    for number, policy in enumerate(policies):
        share = len(range(number, rollouts, len(policies)))
        if share:
            found += list(policy.place(task, share, draw).device_PN)
    return found


def choose_proposers(
    policies: Sequence[Policy],
    tasks: Sequence[Task],
    size: int,
    diversity: float = DIVERSITY,
    tolerance: float = TOLERANCE,
) -> Selection:
    """Chooses policies that propose together.

    The return of a policy is minus the mean ratio of the seconds of its likeliest placements and of greedy ones. The
    divergence of two is that of their choices of devices, in the states of the first policy's likeliest placements.

    Args:
        policies: the snapshots.
        tasks: tasks that nothing was trained on, and that do not judge.
        size: how many to choose.
        diversity: λ.
        tolerance: δ, as a share of the range of the returns.
    """
    returns = [-mean_ratio([policy.place(task, 1, None).device_PN[0] for task in tasks], tasks) for policy in policies]
    apart: Floats = np.zeros((len(policies), len(policies)))
    for task in tasks:
        played = policies[0].place(task, 1, None, learning=True)
        assert played.inputs is not None
        inputs_NPDQ, legal_NPD, _ = played.inputs
        logits = [policy.logits(inputs_NPDQ, legal_NPD)[:, 0] for policy in policies]
        apart += divergence_matrix([Categorical.of_logits(each) for each in logits]) / len(tasks)
    return select(returns, apart, size, diversity, tolerance * (max(returns) - min(returns)))


def mean_ratio(placed: Sequence[Ints], tasks: Sequence[Task]) -> float:
    """Returns the mean ratio of the seconds of placements, one of each task, and of greedy ones."""
    ratios = [task.seconds(device_N) / task.seconds(greedy(task)) for device_N, task in zip(placed, tasks, strict=True)]
    return float(np.mean(ratios))
