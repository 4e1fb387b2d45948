"""Configs of policies: what is refused, and what is put in order."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ziggurat.policies.config import PoliciesConfig


def config(**sections: Any) -> PoliciesConfig:
    return PoliciesConfig.model_validate({"task": {"env": "CartPole-v1"}, **sections})


def test_more_members_than_cycles_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"selection\.members: 4 of the snapshots of 3 cycles; give 3 or fewer"):
        config(training={"cycles": 3}, selection={"members": 4})
    assert config(training={"cycles": 3}, selection={"members": 3}).selection.members == 3


def test_a_sweep_rises_without_repetitions() -> None:
    assert config(evaluation={"sweep": [10, 0, 1, 10, 0.5]}).evaluation.sweep == (0.0, 0.5, 1.0, 10.0)
    assert config(evaluation={"sweep": []}).evaluation.sweep == ()


def test_a_rule_that_is_named_twice_is_played_once() -> None:
    assert config(ensemble={"discrete": ["vote", "vote", "add"]}).ensemble.discrete == ("vote", "add")
    assert config(ensemble={"continuous": ["mean", "mean"]}).ensemble.continuous == ("mean",)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("training", "rate", float("inf")), ("training", "rate", 1e300), ("ensemble", "temperature", float("inf")),
        ("algorithm", "ent_coef", float("nan")), ("algorithm", "max_grad_norm", float("inf")),
    ],
)  # fmt: skip
def test_numbers_that_are_not_finite_are_refused(section: str, key: str, value: float) -> None:
    given = {
        "task": {"env": "CartPole-v1"},
        section: {key: value, **({"name": "ppo"} if section == "algorithm" else {})},
    }
    with pytest.raises(ValidationError, match=key):
        PoliciesConfig.model_validate(given)
