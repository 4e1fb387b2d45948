"""Verification of an ensemble: it reads the runs of all members, and names the one at fault."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.training.conftest import MakeExperiment
from ziggurat.training import api
from ziggurat.verification.verify import verify


@pytest.fixture
def ensemble(make_experiment: MakeExperiment) -> Path:
    runs = [api.train(make_experiment(training__seed=n, training__epochs=1), f"runs/{n}").run for n in range(2)]
    api.build_ensemble(runs, "both", equal_weights=True)
    return Path("both")


def test_a_whole_ensemble(ensemble: Path) -> None:
    found = verify(ensemble)
    assert (found.kind, found.whole) == ("ensemble", True)
    names = {each.name for each in found.checked}
    assert {"ensemble.json", "runs/0/config.yaml", "runs/1/config.yaml", "members"} <= names
    assert any(name.startswith("runs/1/checkpoints/step ") for name in names)
    assert {each.state for each in found.checked} == {"whole"}


def test_each_kind_of_damage_is_named(ensemble: Path) -> None:
    shutil.copytree("runs", "copy")

    def problems() -> list[str]:
        found = verify(ensemble)
        assert not found.whole
        shutil.rmtree("runs")
        shutil.copytree("copy", "runs")
        return [each.problem for each in found.problems]

    shutil.rmtree("runs/1")
    assert problems() == ["runs/1: is missing, and both/ensemble.json names it as a member"]
    file = next(Path("runs/0/checkpoints").glob("step-*/*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert any(each.startswith("runs/0/checkpoints: step ") for each in problems())
    shutil.rmtree("runs/1")
    shutil.copytree("runs/0", "runs/1")
    assert ["the ensemble was made with run" in each for each in problems()] == [True]
    text = (ensemble / "ensemble.json").read_text()
    (ensemble / "ensemble.json").write_text(text.replace("0.5", "0.6"))
    assert problems() == ["both/ensemble.json: is damaged: its content differs from its checksum"]
