"""Invalid values of the environment variables that launchers set."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.commands import ziggurat
from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.parallel.environment import check_world, environment_integer, has_other_ranks
from ziggurat.training.process_group import process_group

VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_integers_are_read_and_missing_ones_have_their_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment_integer("WORLD_SIZE", 1) == 1
    assert not has_other_ranks()
    monkeypatch.setenv("WORLD_SIZE", "12")
    assert environment_integer("WORLD_SIZE", 1) == 12
    assert has_other_ranks()
    with pytest.raises(EnvironmentMismatch, match=r"variable RANK is not set; .* which of them this one is, from 0"):
        environment_integer("RANK")


@pytest.mark.parametrize("value", ["x", "", "-1", "2.0", " 2", "²"])
@pytest.mark.parametrize("name", VARIABLES)
def test_an_invalid_integer_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentMismatch) as caught:
        check_world()
    said = f"the environment variable {name} is {value!r}; launchers set it to a whole number, "
    assert caught.value.problem.startswith(said)
    assert "torchrun" in caught.value.hint


def test_a_single_process_ignores_the_other_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "x")
    check_world()
    monkeypatch.setenv("WORLD_SIZE", "1")
    check_world()


def test_the_python_api_raises_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "x")
    with pytest.raises(EnvironmentMismatch, match="WORLD_SIZE is 'x'"), process_group(torch.device("cpu")):
        pass
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(EnvironmentMismatch, match="RANK is 'first'"), process_group(torch.device("cpu")):
        pass


@pytest.mark.parametrize("wrong", [{"WORLD_SIZE": "x", "RANK": "0"}, {"WORLD_SIZE": "2", "RANK": "x"}])
def test_the_command_line_prints_the_error_without_a_traceback(folder: Path, wrong: dict[str, str]) -> None:
    environment = {**os.environ, **wrong}
    status, _, err = ziggurat("train", "exp.yaml", "--run", "runs/strange", folder=folder, environment=environment)
    name = next(name for name, value in wrong.items() if value == "x")
    assert status == 1
    assert f"the environment variable {name} is 'x'; launchers set it to a whole number" in err
    assert "Traceback" not in err
    assert not (folder / "runs/strange").exists()
