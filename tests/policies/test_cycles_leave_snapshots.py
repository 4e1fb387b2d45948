"""A training is refused exactly where a cycle would leave no snapshot, before anything is trained or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("stable_baselines3")

from ziggurat.core.errors import ConfigError
from ziggurat.policies import run_folder, training
from ziggurat.policies.config import PoliciesConfig
from ziggurat.policies.training import train


def config(algorithm: dict[str, Any], **lengths: Any) -> PoliciesConfig:
    return PoliciesConfig.model_validate(
        {
            "task": {"env": "CartPole-v1", "max_steps": 20},
            "algorithm": {"hidden": (2,), **algorithm},
            "training": {"environments": 2, **lengths},
            "selection": {"members": 1},
        }
    )


A2C, DQN = {"name": "a2c", "n_steps": 8}, {"name": "dqn", "train_freq": 10, "buffer_size": 50}


@pytest.mark.parametrize(
    ("algorithm", "lengths", "problem", "hint"),
    [
        (A2C, {"steps": 129, "cycles": 20}, "20 cycles of 7 steps", "use 19 cycles, or 140 steps"),
        (A2C, {"steps": 90, "cycles": 31}, r"31 cycles of 3 steps", "use 30 cycles, or 93 steps"),
        (A2C, {"steps": 90, "cycles": 30}, r"cycles 1 and 5, of 3 steps.* 16 steps, algorithm\.n_steps", "at most 5,"),
        (DQN, {"steps": 90, "cycles": 9}, r"cycles 1 and 2, of 10 steps.* 20 steps, algorithm\.train_freq", "most 4,"),
    ],
)
def test_cycles_without_snapshots_are_refused(
    algorithm: dict[str, Any], lengths: dict[str, Any], problem: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        train(config(algorithm, **lengths), tmp_path / "run")
    assert hint in refused.value.hint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("save_every", [None, 7])
@pytest.mark.parametrize("algorithm", [A2C, DQN])
def test_exactly_those_are_refused(
    algorithm: dict[str, Any], save_every: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[tuple[int, int]] = []
    cases = ((60, 2), (60, 4), (60, 5), (50, 3), (64, 4))
    for steps, cycles in cases:
        settings = config(algorithm, steps=steps, cycles=cycles, save_every=save_every)
        folder = tmp_path / f"{steps}-{cycles}"
        try:
            train(settings, folder)
        except ConfigError:
            refused.append((steps, cycles))
            with monkeypatch.context() as unchecked:
                unchecked.setattr(training, "_check_cycles", lambda config: None)
                train(settings, folder)
        found = [each.cycle for each in run_folder.read_snapshots(folder)]
        assert (found != list(range(1, cycles + 1))) == ((steps, cycles) in refused)
    assert 0 < len(refused) < len(cases)
