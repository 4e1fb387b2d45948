"""The contestants of the benchmark seerl begin episodes alike, and the steps that chose are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from bench.quality.seerl_tasks import CYCLES, MEMBERS, TASKS, Task, trained
from ziggurat.policies.agents import play as playing
from ziggurat.policies.config import PoliciesConfig
from ziggurat.policies.training import save_points


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_all_contestants_begin_new_episodes_after_equal_steps(task: Task) -> None:
    gaps: set[int] = set()
    for schedule, steps, cycles in (
        ("cyclical", task.steps, CYCLES),
        ("constant", task.steps, CYCLES),
        ("constant", task.steps // MEMBERS, 1),
    ):
        config = PoliciesConfig.model_validate(task.config(0, schedule, steps, cycles, 3))
        points = save_points(config.training)
        assert points[-1] == steps
        gaps |= set(np.diff([0, *points]).tolist()[:-1])
    assert gaps == {-(-task.steps // CYCLES)}


@pytest.mark.parametrize("method", ["seerl", "plain", "independent"])
def test_steps_that_choose_are_counted(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[tuple[int, int]] = []
    play = playing.play

    def watched(task: Any, act: Any, seeds: Any, **rest: Any) -> Any:
        found = play(task, act, seeds, **rest)
        counted.append((seeds[0], found.steps))
        return found

    monkeypatch.setattr(playing, "play", watched)
    outcome = trained(tmp_path, "cartpole", 0, method, 2, True)
    assert outcome["selection"] == sum(steps for seed, steps in counted if seed == 1_000_000) > 0
    assert outcome["steps"] == 384
