"""Learning-rate schedules: multipliers computed by hand, properties checked by hypothesis, and resuming."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ziggurat.core.config import Config, parse_config
from ziggurat.core.errors import ConfigError, RunFolderError
from ziggurat.optim.schedule import (
    Constant,
    CyclicCosine,
    Plateau,
    Schedule,
    ScheduleConfig,
    WarmupCosine,
    WarmupLinear,
    build_schedule,
)

WARMUPS = [WarmupCosine.Config, WarmupLinear.Config]


def multipliers(schedule: Schedule, steps: int) -> list[float]:
    return [schedule.multiplier(step) for step in range(steps)]


def test_constant_is_one() -> None:
    assert multipliers(build_schedule(Constant.Config(), 3), 5) == [1.0] * 5


def test_linear_by_hand() -> None:
    schedule = build_schedule(WarmupLinear.Config(warmup_steps=2, final_share=0.2), 6)
    assert multipliers(schedule, 8) == pytest.approx([0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_cosine_by_hand() -> None:
    schedule = build_schedule(WarmupCosine.Config(warmup_steps=4, final_share=0.0), 8)
    half = math.sqrt(0.5)
    expected = [0.25, 0.5, 0.75, 1.0, 1.0, (1 + half) / 2, 0.5, (1 - half) / 2, 0.0]
    assert multipliers(schedule, 9) == pytest.approx(expected)


@pytest.mark.parametrize("kind", WARMUPS)
def test_warmup_share_equals_the_same_number_of_steps(kind: type[WarmupCosine.Config]) -> None:
    by_share = build_schedule(kind(warmup_share=0.1), 200)
    by_steps = build_schedule(kind(warmup_steps=20), 200)
    assert multipliers(by_share, 210) == multipliers(by_steps, 210)


@pytest.mark.parametrize("kind", WARMUPS)
@settings(max_examples=60, deadline=None)
@given(total=st.integers(1, 300), warmup=st.integers(0, 400), final=st.floats(0, 1))
def test_warmups_rise_then_fall_within_bounds(
    kind: type[WarmupCosine.Config], total: int, warmup: int, final: float
) -> None:
    values = multipliers(build_schedule(kind(warmup_steps=warmup, final_share=final), total), total)
    assert all(0 < value <= 1 for value in values[:warmup])
    assert all(final - 1e-12 <= value <= 1 for value in values[warmup:])
    assert values[:warmup] == sorted(values[:warmup])
    assert values[warmup:] == sorted(values[warmup:], reverse=True)
    if warmup < total:
        assert values[warmup] == pytest.approx(1.0)


def test_cyclic_cosine_by_hand() -> None:
    schedule = build_schedule(CyclicCosine.Config(cycles=2, final_share=0.2), 8)
    half = math.sqrt(0.5)
    cycle = [0.2 + 0.8 * shape for shape in (1.0, (1 + half) / 2, 0.5, (1 - half) / 2)]
    assert multipliers(schedule, 9) == pytest.approx([*cycle, *cycle, 0.2])
    assert [step for step in range(12) if schedule.ends_cycle(step)] == [4, 8]


@settings(max_examples=100, deadline=None)
@given(total=st.integers(1, 300), cycles=st.integers(2, 40), final=st.floats(0, 1))
def test_each_cycle_falls_from_one_within_bounds(total: int, cycles: int, final: float) -> None:
    schedule = build_schedule(CyclicCosine.Config(cycles=cycles, final_share=final), total)
    values = multipliers(schedule, total)
    ends = [step for step in range(-2, total + 5) if schedule.ends_cycle(step)]
    assert ends[-1] == total
    assert len(ends) == min(cycles, total)
    lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    assert max(lengths) - min(lengths) <= 1
    for start, end in zip([0, *ends], ends, strict=False):
        assert values[start] == pytest.approx(1.0)
        assert values[start:end] == sorted(values[start:end], reverse=True)
        assert all(final - 1e-12 <= value <= 1 for value in values[start:end])
    assert [step for step in range(total + 1) if schedule.is_low(step)] == ends
    assert schedule.multiplier(total) == final


@pytest.mark.parametrize("config", [Constant.Config(), WarmupCosine.Config(), WarmupLinear.Config(), Plateau.Config()])
def test_a_schedule_without_cycles_ends_none_and_every_evaluation_counts(config: ScheduleConfig) -> None:
    schedule = build_schedule(config, 10)
    assert not any(schedule.ends_cycle(step) for step in range(12))
    assert all(schedule.is_low(step) for step in range(12))


def test_plateau_by_hand() -> None:
    schedule = build_schedule(Plateau.Config(factor=0.1, patience=2), 100)
    seen: list[float] = []
    for value in [0.5, 0.4, 0.45, 0.41, 0.39, 0.39, math.nan, 0.5, 0.38]:
        schedule.observe(value)
        seen.append(schedule.multiplier(0))
    assert seen == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01])


def test_plateau_counts_only_improvements_beyond_min_delta() -> None:
    schedule = build_schedule(Plateau.Config(factor=0.5, patience=1, min_delta=0.1), 100)
    for value in [1.0, 0.95, 0.85]:
        schedule.observe(value)
    assert schedule.multiplier(0) == 0.5


def test_plateau_cuts_if_it_only_sees_nan() -> None:
    schedule = build_schedule(Plateau.Config(factor=0.5, patience=1), 100)
    schedule.observe(math.nan)
    assert schedule.multiplier(0) == 0.5


def test_plateau_keeps_its_minimum() -> None:
    schedule = build_schedule(Plateau.Config(factor=0.1, patience=1, minimum=0.05), 100)
    for _ in range(5):
        schedule.observe(1.0)
    assert schedule.multiplier(0) == 0.05


@pytest.mark.parametrize(
    "config",
    [
        Constant.Config(),
        WarmupCosine.Config(),
        WarmupLinear.Config(),
        Plateau.Config(patience=2),
        CyclicCosine.Config(cycles=3),
    ],
)
def test_a_resumed_schedule_equals_an_uninterrupted_one(config: ScheduleConfig) -> None:
    values = [0.5, 0.6, 0.7, 0.4, 0.45, 0.5, 0.5, 0.3]
    straight, stopped = build_schedule(config, 8), build_schedule(config, 8)
    for value in values[:3]:
        straight.observe(value)
        stopped.observe(value)
    resumed = build_schedule(config, 8)
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    for step, value in enumerate(values[3:]):
        straight.observe(value)
        resumed.observe(value)
        assert resumed.multiplier(step) == straight.multiplier(step)
    assert resumed.state_dict() == straight.state_dict()


def test_another_schedules_state_is_refused() -> None:
    plateau = build_schedule(Plateau.Config(), 10)
    with pytest.raises(RunFolderError, match=r"Constant keeps \[\]"):
        build_schedule(Constant.Config(), 10).load_state_dict(plateau.state_dict())


class Holder(Config):
    schedule: ScheduleConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "warmup_cosin"}, "did you mean 'warmup_cosine'"),
        ({"name": "warmup_cosine", "warmup": 5}, "unknown key"),
        ({"name": "warmup_linear", "warmup_steps": 5, "warmup_share": 0.1}, "not both"),
        ({"name": "warmup_linear", "warmup_share": 1.5}, "schedule.warmup_share"),
        ({"name": "cyclic_cosine", "cycles": 1}, "schedule.cycles"),
        ({"name": "cyclic_cosine", "final_share": -0.1}, "schedule.final_share"),
        ({"name": "cyclic_cosine", "warmup_steps": 5}, "unknown key"),
        ({"name": "plateau", "factor": 1.0}, "schedule.factor"),
        ({"name": "plateau", "patience": 0}, "schedule.patience"),
    ],
)
def test_a_bad_config_is_explained(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(Holder, {"schedule": values})
