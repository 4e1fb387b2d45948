"""Several policies that propose placements together."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

from ziggurat.core.errors import ConfigError
from ziggurat.planning.autoshard.learned import learned_costs, learned_policies, learned_policy
from ziggurat.planning.autoshard.learning import draw_task
from ziggurat.planning.autoshard.policy import Policy
from ziggurat.planning.autoshard.pool import table_pool
from ziggurat.planning.autoshard.proposers import choose_proposers, mean_ratio, proposals
from ziggurat.planning.autoshard.task import greedy

POOL = table_pool(tables=40)


def tasks(count: int) -> list:  # pyright: ignore[reportMissingTypeArgument]
    network, draw = learned_costs(None).network, np.random.default_rng(0)
    return [draw_task(POOL, draw, 8, 16).task(network) for _ in range(count)]


def perturbed(seed: int, size: float) -> Policy:
    draw = np.random.default_rng(seed)
    weights = learned_policy(None).weights
    return Policy({name: np.float32(each + size * draw.normal(size=each.shape)) for name, each in weights.items()}, {})


def test_one_policy_proposes_as_it_did_alone() -> None:
    [task] = tasks(1)
    policy = learned_policy(None)
    found = proposals([policy], task, 5, np.random.default_rng(3))
    drawn = policy.place(task, 5, np.random.default_rng(3)).device_PN
    expected = [*policy.place(task, 1, None).device_PN, *drawn]
    assert [each.tolist() for each in found] == [each.tolist() for each in expected]


def test_several_share_the_draws() -> None:
    [task] = tasks(1)
    policies = [perturbed(seed, 0.3) for seed in range(3)]
    found = proposals(policies, task, 8, np.random.default_rng(3))
    assert len(found) == 3 + 8
    for policy, likeliest in zip(policies, found[:3], strict=True):
        assert likeliest.tolist() == policy.place(task, 1, None).device_PN[0].tolist()
    assert len(proposals(policies, task, 2, np.random.default_rng(3))) == 3 + 2


def test_the_best_are_chosen_and_with_a_large_weight_the_most_different() -> None:
    found = tasks(4)
    weights = learned_policy(None).weights
    worst = Policy({**weights, "greed": np.array(-1000.0, np.float32)}, {})  # takes the device that costs most
    policies = [perturbed(0, 0.0), perturbed(0, 0.0), worst]
    ratios = [mean_ratio([policy.place(task, 1, None).device_PN[0] for task in found], found) for policy in policies]
    assert ratios[0] == ratios[1] < ratios[2]
    assert choose_proposers(policies, found, 2, 0.0, 1.0).members == (0, 1)
    assert choose_proposers(policies, found, 2, 1e6, 1.0).members == (0, 2)
    assert choose_proposers(policies, found, 2, 1e6, 0.5).members == (0, 1)  # the last one is not good enough
    # Unless told otherwise, as many are chosen as were asked for: costs, not returns, decide whose placement is taken.
    assert choose_proposers(policies, found, 3).members == (0, 1, 2)
    assert mean_ratio([greedy(task) for task in found], found) == 1.0


def test_the_shipped_policy_is_a_single_one() -> None:
    assert len(learned_policies(None, 1)) == 1
    with pytest.raises(ConfigError, match="comes with ziggurat is a single one"):
        learned_policies(None, 2)


def test_the_divergence_of_proposers_is_that_of_their_choices_of_devices() -> None:
    """Over all tasks, in the states of the first policy's likeliest placements."""
    found, policies = tasks(2), [perturbed(seed, 0.3) for seed in range(2)]
    apart: list[float] = []
    for task in found:
        inputs_NPDQ, legal_NPD, _ = policies[0].place(task, 1, None, learning=True).inputs  # pyright: ignore[reportGeneralTypeIssues]
        one, other = (
            softmax(np.asarray(policy.logits(inputs_NPDQ, legal_NPD)[:, 0], np.float64), -1) for policy in policies
        )
        seen = (one > 0) & (other > 0)
        terms = np.where(seen, (one - other) * (np.log(np.where(seen, one, 1)) - np.log(np.where(seen, other, 1))), 0)
        apart.append(float(terms.sum(-1).mean() / 2))
    chosen = choose_proposers(policies, found, 2)
    assert chosen.members == (0, 1)
    assert chosen.diversity == pytest.approx(np.mean(apart), rel=1e-4)
    assert abs(apart[0] - apart[1]) > 1e-3 * apart[0]
