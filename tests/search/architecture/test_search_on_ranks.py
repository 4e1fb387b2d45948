"""A search of architectures on two ranks, and one whose process is killed: both go on as if nothing had happened.

Two ranks that start anew may round sums differently in the last bits, so their figures are compared within 1e-4.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Command, ziggurat
from tests.distributed.ranks import run_ranks
from tests.search.architecture.conftest import SMALL, small_config
from tests.training.conftest import MakeExperiment
from ziggurat.checkpoint.folder import CHECKPOINTS, CheckpointFolder
from ziggurat.core.config import parse_config
from ziggurat.search.architecture.search import DRAWN_FILE, SUPERNET, search_architecture
from ziggurat.training.experiment import Experiment, as_yaml, to_yaml

STEPS = 5


def searched(rank: int, values: dict[str, Any], folder: str, *stops: int | None) -> list[Any]:
    """Searches up to each of these steps of the super-net; returns what the last search has found."""
    del rank
    found: list[Any] = []
    for stop_after in stops:
        outcome = search_architecture(
            parse_config(Experiment, values), folder, config=small_config(), prepared="prepared", stop_after=stop_after
        )
        best = outcome.found.best
        found = [
            outcome.finished,
            [(each.number, each.state, each.choices) for each in outcome.found.trials],
            None if best is None else best.number,
            [each.value for each in outcome.found.trials],
            outcome.found.history,
            outcome.found.test,
        ]
    return found


def decided(folder: Path) -> list[dict[str, Any]]:
    """Returns the architectures that were drawn, with their values."""
    return json.loads((folder / DRAWN_FILE).read_text())["drawn"]


def best(folder: Path) -> list[str]:
    """Returns the lines of the best config, but for comments, which name the folder."""
    return [line for line in (folder / "best.yaml").read_text().splitlines() if not line.startswith("#")]


def test_two_ranks_agree_and_go_on(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    values = make_experiment(training__epochs=1).model_dump(mode="json")
    whole, parts = str(tmp_path / "whole"), str(tmp_path / "parts")
    first, second = run_ranks(2, searched, values, whole, None)
    assert first == second
    assert first[0]
    assert [each[1] for each in first[1]] == ["complete", "complete"]
    resumed, other = run_ranks(2, searched, values, parts, STEPS, None)
    assert resumed == other
    assert resumed[:3] == first[:3]
    assert resumed[3] == pytest.approx(first[3], abs=1e-4)
    for found, expected in zip(resumed[4], first[4], strict=True):
        assert found.step == expected.step
        assert found.weights_loss == pytest.approx(expected.weights_loss, abs=1e-4)
        assert found.architecture_loss == pytest.approx(expected.architecture_loss, abs=1e-4)
        for name, probabilities in expected.probabilities.items():
            assert found.probabilities[name] == pytest.approx(probabilities, abs=1e-4)
    assert best(tmp_path / "parts") == best(tmp_path / "whole")


def test_a_search_that_is_killed_goes_on_to_the_bit(make_experiment: MakeExperiment) -> None:
    """SIGKILL comes when the super-net has a checkpoint, and what was done since then is done again."""
    Path("exp.yaml").write_text(to_yaml(make_experiment(training__epochs=1, training__save_every=2)))
    Path("space.yaml").write_text(as_yaml({"search": {**SMALL, "supernet": {"warmup_epochs": 1, "epochs": 4}}}))
    arguments = ["search", "architecture", "exp.yaml", "--space", "space.yaml"]
    status, _, said = ziggurat(*arguments, "--run", "whole")
    assert status == 0, said
    killed = Command(*arguments, "--run", "parts")
    deadline = time.monotonic() + 120
    while not Path("parts", SUPERNET).exists() or not CheckpointFolder(Path("parts", SUPERNET, CHECKPOINTS)).steps():
        assert killed.poll() is None, killed.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not Path("parts", DRAWN_FILE).exists()
    status, _, said = ziggurat(*arguments, "--run", "parts")
    assert status == 0, said
    assert "resuming at step" in said
    assert decided(Path("parts")) == decided(Path("whole"))
    assert best(Path("parts")) == best(Path("whole"))
