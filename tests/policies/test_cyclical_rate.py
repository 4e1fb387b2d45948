"""The cyclical rate, against its formula and by hand."""

from __future__ import annotations

import math

import pytest

from ziggurat.core.errors import ConfigError
from ziggurat.policies.config import TrainingConfig
from ziggurat.policies.schedule import CyclicalRate, cycle_ends
from ziggurat.policies.training import rate_of, save_points


@pytest.mark.parametrize(("steps", "cycles"), [(100, 4), (103, 5), (7, 7), (9, 1)])
def test_the_rate_is_that_of_the_formula(steps: int, cycles: int) -> None:
    rate = CyclicalRate(0.3, steps, cycles)
    length = math.ceil(steps / cycles)
    for step in range(1, steps + 1):
        expected = 0.3 / 2 * (math.cos(math.pi * math.fmod(step - 1, length) / length) + 1)
        assert rate.rate(step) == pytest.approx(expected, rel=1e-15, abs=1e-18)
    assert rate.rate(1) == 0.3
    assert rate.ends == cycle_ends(steps, cycles)


def test_each_cycle_starts_at_the_initial_rate_and_ends_at_the_least() -> None:
    rate = CyclicalRate(1.0, 100, 4)
    assert rate.ends == (25, 50, 75, 100)
    for end in rate.ends:
        assert rate.rate(end - 24) == 1.0
        assert rate.rate(end) == min(rate.rate(step) for step in range(1, 101))
    assert rate.rate(13) == pytest.approx(0.5 * (math.cos(math.pi * 12 / 25) + 1))


def test_cycles_that_do_not_fit_are_fewer() -> None:
    assert cycle_ends(10, 4) == (3, 6, 9, 10)
    assert cycle_ends(9, 6) == (2, 4, 6, 8, 9)  # cycles of ⌈9/6⌉ = 2 steps


def test_states_are_saved_at_each_end_and_within_if_asked_for() -> None:
    training = TrainingConfig(steps=100, cycles=2, save_every=20)
    assert save_points(training) == (20, 40, 50, 70, 90, 100)
    assert save_points(TrainingConfig(steps=80, cycles=2)) == (40, 80)


def test_a_constant_rate_is_constant() -> None:
    rate = rate_of(TrainingConfig(steps=100, cycles=2, rate=0.01, schedule="constant"))
    assert {rate(step) for step in range(1, 101)} == {0.01}


@pytest.mark.parametrize("arguments", [(0.0, 10, 2), (math.inf, 10, 2), (0.1, 2, 3), (0.1, 2, 0)])
def test_what_is_no_schedule_is_refused(arguments: tuple[float, int, int]) -> None:
    with pytest.raises(ConfigError):
        CyclicalRate(*arguments)
