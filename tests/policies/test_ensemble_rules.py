"""Each rule of the ensembles, against a plain loop over states."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ziggurat.policies.continuous_rules import BANDWIDTH, BINS, continuous_action
from ziggurat.policies.discrete_rules import discrete_action

POLICIES, STATES = 5, 40


def votes(p: np.ndarray) -> int:
    counts = Counter(int(each.argmax()) for each in p)
    most = max(counts.values())
    tied = [action for action, count in counts.items() if count == most]
    return max(sorted(tied), key=lambda action: p[:, action].sum())


@pytest.mark.parametrize("rule", ["vote", "add", "multiply"])
def test_discrete_rules(rule: str) -> None:
    draw = np.random.default_rng(1)
    logits = draw.normal(0, 2, (POLICIES, STATES, 4))
    log_MNA = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found = discrete_action(rule, log_MNA)  # pyright: ignore[reportArgumentType]
    p = np.exp(log_MNA)
    for state in range(STATES):
        expected = {
            "vote": votes(p[:, state]),
            "add": int(np.argmax([sum(p[k, state, a] for k in range(POLICIES)) for a in range(4)])),
            "multiply": int(np.argmax([np.prod([p[k, state, a] for k in range(POLICIES)]) for a in range(4)])),
        }
        assert found[state] == expected[rule]


def test_discrete_rules_differ_where_they_should() -> None:
    p = np.array([[0.51, 0.49, 0.0], [0.51, 0.49, 0.0], [0.0, 0.9, 0.1]])[:, None] + 1e-9
    log = np.log(p)
    assert discrete_action("vote", log).tolist() == [0]
    assert discrete_action("add", log).tolist() == [1]
    veto = np.log(np.array([[0.98, 0.02], [0.98, 0.02], [1e-9, 1.0]])[:, None])
    assert discrete_action("add", veto).tolist() == [0]
    assert discrete_action("multiply", veto).tolist() == [1]
    tie = np.log(np.array([[0.9, 0.1], [0.4, 0.6]])[:, None])
    assert discrete_action("vote", tie).tolist() == [0]
    assert discrete_action("vote", np.log(np.array([[0.6, 0.4], [0.1, 0.9]])[:, None])).tolist() == [1]


LOW, HIGH = np.array([-1.0, 0.0]), np.array([1.0, 10.0])


def binned(a: np.ndarray) -> list[float]:
    found: list[float] = []
    for low, high, column in zip(LOW, HIGH, a.T, strict=True):
        bins: dict[int, list[float]] = {}
        for value in column:
            bins.setdefault(min(int((value - low) / (high - low) * BINS), BINS - 1), []).append(value)
        most = max(map(len, bins.values()))
        full = [bins[place] for place in sorted(bins) if len(bins[place]) == most]
        found.append(min((float(np.mean(each)) for each in full), key=lambda mean: abs(mean - column.mean())))
    return found


def densest(a: np.ndarray) -> list[float]:
    scaled = a / ((HIGH - LOW) / 2)
    density = [sum(np.exp(-((i - j) ** 2).sum() / (2 * BANDWIDTH**2)) for j in scaled) for i in scaled]
    return a[int(np.argmax(density))].tolist()


def eliminated(a: np.ndarray) -> list[float]:
    left = list(range(len(a)))
    scaled = a / ((HIGH - LOW) / 2)
    while len(left) > 2:
        middle = scaled[left].mean(0)
        left.remove(max(left, key=lambda k: ((scaled[k] - middle) ** 2).sum()))
    return a[left].mean(0).tolist()


REFERENCES = {"mean": lambda a: a.mean(0).tolist(), "bins": binned, "density": densest, "elimination": eliminated}


@pytest.mark.parametrize("policies", [1, 2, 3, POLICIES])
@pytest.mark.parametrize("rule", REFERENCES)
def test_continuous_rules(rule: str, policies: int) -> None:
    draw = np.random.default_rng(policies)
    actions = draw.uniform(LOW, HIGH, (policies, STATES, 2))
    actions[0, 0] = HIGH  # the end of the range belongs to the last bin
    found = continuous_action(rule, actions, LOW, HIGH)  # pyright: ignore[reportArgumentType]
    for state in range(STATES):
        assert found[state].tolist() == pytest.approx(REFERENCES[rule](actions[:, state]))
    if policies == 1:
        np.testing.assert_allclose(found, actions[0])


def test_outliers_move_the_mean_alone() -> None:
    actions = np.array([[[0.0, 5.0]], [[0.02, 5.1]], [[0.01, 5.05]], [[1.0, 10.0]]])
    assert continuous_action("mean", actions, LOW, HIGH)[0, 0] > 0.25
    for rule in ("bins", "density", "elimination"):
        assert abs(continuous_action(rule, actions, LOW, HIGH)[0, 0] - 0.01) < 0.02
