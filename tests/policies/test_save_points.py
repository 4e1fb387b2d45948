"""Save points cut few episodes off: by default they are the ends of cycles, and what cuts episodes off is said."""

from __future__ import annotations

import re
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("stable_baselines3")

from safetensors.numpy import load_file

from ziggurat.core.progress import Silent
from ziggurat.core.sealed import write_sealed_json
from ziggurat.policies import run_folder
from ziggurat.policies.config import PoliciesConfig
from ziggurat.policies.training import train


class Noted(Silent):
    """Keeps notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def config(max_steps: int | None, **training: Any) -> PoliciesConfig:
    return PoliciesConfig.model_validate(
        {
            "task": {"env": "Pendulum-v1", "max_steps": max_steps},
            "algorithm": {"name": "a2c", "hidden": (4,), "n_steps": 5},
            "training": {"steps": 400, "cycles": 2, "environments": 4, **training},
            "selection": {"members": 2},
        }
    )


def test_whole_episodes_are_played_by_default(tmp_path: Path) -> None:
    noted = Noted()
    train(config(25), tmp_path / "run", progress=noted)
    record = run_folder.read_record(tmp_path / "run")
    assert record is not None
    assert [each.length for each in record.episodes] == [25] * 16  # two cycles of two episodes in four environments
    assert noted.notes == []


@pytest.mark.parametrize(
    ("max_steps", "training", "note"),
    [
        (30, {"save_every": 100}, r"100 steps .* in 4 .* 30 steps, .* makes 25 .* divides the 200 steps of a cycle"),
        (25, {"save_every": 100}, ""),
        (25, {"save_every": 150}, r"50 steps .* makes 12 "),  # what is left of a cycle
        (51, {}, r"200 steps .* in 4 environments.* 51 steps, .* makes 50 .* fewer cycles"),
        (None, {}, "an episode may take 200 steps"),  # as the environment is registered
        (None, {"steps": 1600}, ""),
    ],
)
def test_a_cut_within_episodes_is_said(
    max_steps: int | None, training: dict[str, Any], note: str, tmp_path: Path
) -> None:
    noted = Noted()
    settings = config(max_steps, **training)
    train(settings, tmp_path / "run", progress=noted, stop=lambda: signal.SIGINT)
    assert len(noted.notes) == bool(note)
    assert all(re.search(note, each) for each in noted.notes), noted.notes


def test_a_run_that_was_saved_at_more_points_goes_on(tmp_path: Path) -> None:
    """Earlier versions saved four times a cycle, and counted the points."""
    whole, old = tmp_path / "whole", tmp_path / "old"
    train(config(25), whole)
    asked = [0]

    def stop() -> signal.Signals | None:
        asked[0] += 1
        return signal.SIGTERM if asked[0] > 60 else None  # in the second cycle

    assert train(config(25), old, stop=stop).steps == 200
    record = run_folder.read_record(old)
    assert record is not None
    values = {**asdict(record), "done": 4}
    write_sealed_json(old / "state" / "state.json", {"version": run_folder.VERSION, **values})
    assert train(config(25), old).steps == 400
    for cycle in (1, 2):
        mine, theirs = (load_file(run_folder.snapshot_path(each, cycle)) for each in (whole, old))
        assert all(mine[name].tobytes() == theirs[name].tobytes() for name in mine)
