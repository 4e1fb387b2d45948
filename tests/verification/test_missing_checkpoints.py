"""Checkpoints that are not there although ``metrics.jsonl`` records them: a verification of the run names them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from damage_kit import experiment

import ziggurat
from tests.training.conftest import write_log
from ziggurat.core.errors import RunFolderError
from ziggurat.training import api
from ziggurat.verification.verify import verify


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight steps with a checkpoint after each two; the newest three are kept, and the best one."""
    folder = tmp_path_factory.mktemp("trained")
    write_log(folder / "log.csv", 600, 1)
    changes = {"training.save_every": 2, "training.evaluate_every": 2, "training.keep": 3, "training.max_steps": 8}
    return api.train(experiment(folder, **changes), folder / "run", prepared=folder / "prepared").run.folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def replaced(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no manifest": (
        lambda step: (step / "manifest.json").unlink(),
        "manifest.json: is missing, although metrics.jsonl",
    ),
    "a folder": (lambda step: replaced(step / "manifest.json"), "manifest.json: is a folder, not a file, although"),
    "no folder": (lambda step: shutil.rmtree(step), ": is missing, although metrics.jsonl records that checkpoint"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_the_newest_checkpoint_is_missed(run: Path, case: str) -> None:
    assert verify(run).whole
    damage, problem = DAMAGES[case]
    newest = sorted(run.glob("checkpoints/step-*"))[-1]
    damage(newest)
    found = verify(run)
    assert any(f"{newest.name}{'/' * (case != 'no folder')}{problem}" in each.problem for each in found.problems)
    if case != "no folder":
        with pytest.raises(
            RunFolderError, match=rf"{newest.name}/manifest.json: is .*: no checkpoint of step \d+; there"
        ):
            ziggurat.evaluate(run, checkpoint=str(int(newest.name.removeprefix("step-"))))


def test_all_checkpoints_are_missed(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "results.json").unlink()
    (problem,) = (each.problem for each in verify(run).problems)
    assert "there is no checkpoint, and metrics.jsonl records that of step 8" in problem


def test_pruned_checkpoints_are_a_note(run: Path) -> None:
    pruned = ziggurat.prune_checkpoints(run, keep=1)
    found = verify(run)
    assert found.whole
    notes = [note for note in found.notes if "although metrics.jsonl records that checkpoint: somebody" in note]
    assert pruned.steps
    assert len(notes) == len(pruned.steps)
    assert all(any(f"step {step} is missing" in note for note in notes) for step in pruned.steps)


def test_a_folder_in_place_of_the_best_mark(run: Path) -> None:
    replaced(run / "checkpoints/best.json")
    (problem,) = (each.problem for each in verify(run).problems)
    assert problem.endswith("best.json: is a folder, not a file")
    with pytest.raises(RunFolderError, match=r"best\.json: is a folder, not a file"):
        ziggurat.evaluate(run)
