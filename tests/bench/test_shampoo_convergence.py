"""The comparison of optimizers in ``shampoo_convergence``."""

from __future__ import annotations

import math

import pytest

from bench.quality.optimizer_tasks import Digits, Task
from bench.quality.optimizer_trial import OPTIMIZERS, PEERS_FOLDER, Curve, Setting, curve
from bench.quality.shampoo_convergence import compared, tuned


def test_steps_are_counted_to_the_goal_of_the_same_seed() -> None:
    curves = {
        "adamw": [Curve([0.5, 0.4, 0.3, 0.35], [1, 2, 3, 4]), Curve([0.5, 0.2, 0.3, 0.3], [1, 2, 3, 4])],
        "ours": [Curve([0.4, 0.25], [2, 4]), Curve([0.4, 0.3, 0.25, 0.21], [2, 4, 6, 8])],
    }
    figures, lines = compared("task", 10, curves)
    found = {each.name: each for each in figures}
    assert found["task.ours.fewer_steps"].samples == pytest.approx((100 / 3, -100))  # all steps if never reached
    assert found["task.ours.time"].samples == pytest.approx((4 / 3, 8 / 2))
    assert found["task.ours.fewer_steps"].note == "never reached by 1 of 2 seeds"
    assert found["task.ours.fewer_steps_near"].samples == pytest.approx((100 / 3, -100))  # .33 and .22
    assert found["task.adamw.best"].samples == (0.3, 0.2)
    assert lines[1][3] == "20 40 (never reached by 1 of 2 seeds)"


def test_a_training_that_diverged_has_reached_nothing() -> None:
    nothing = Curve([], [])
    assert nothing.best == math.inf
    assert nothing.reached(math.inf) is None
    figures, _ = compared("task", 10, {"adamw": [Curve([0.5], [1.0])], "ours": [nothing]})
    assert {each.name: each.samples for each in figures}["task.ours.time"] == (math.inf,)


def test_the_tuned_setting_reaches_the_goal_first_or_without_a_goal_is_the_best() -> None:
    curves = [Curve([], []), Curve([0.5, 0.3], [1, 2]), Curve([0.4, 0.35], [1, 2]), Curve([0.4, 0.1], [1, 2])]
    assert tuned(curves, None) == 3
    assert tuned(curves, 0.4) == 3  # as early as number 2, with a lower final loss
    assert tuned(curves[:3], 0.4) == 2
    assert tuned(curves, 0.05) == 3


def test_settings_are_the_same_for_all_and_differ_from_each_other() -> None:
    drawn = [Setting.drawn(number) for number in range(12)]
    assert drawn == [Setting.drawn(number) for number in range(12)]
    assert len({each.lr for each in drawn}) == 12
    assert min(each.lr for each in drawn) < 1e-3 < 1e-2 < max(each.lr for each in drawn)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_learns_digits(name: str) -> None:
    if name.startswith("peer") and not PEERS_FOLDER.is_dir():
        pytest.skip("the peers are not installed: bench/peers/install.py")
    found = curve(Task("digits", "", Digits, 120, 40), name, Setting(3e-3, 0.9, 0.99, 1e-4), 0)
    assert len(found.losses) == 3
    assert found.best < 0.8 * math.log(10)
    assert found.seconds == sorted(found.seconds)
