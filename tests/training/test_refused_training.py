"""A training that is refused leaves the run as it is: its config, its data, its plan and its checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import ziggurat
from tests.data.ingest_reader import ReaderProcess
from tests.training.conftest import MakeExperiment, RecordedNotes, write_log
from ziggurat.core.errors import ConfigError, DataError, NoFeasiblePlan, RunFolderError, ZigguratError
from ziggurat.core.files import LOCK_FILE, locked_folder

OF_THE_LAST_ATTEMPT = {LOCK_FILE, "writer.json"}
"""Files that say which process was the last one here."""


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in OF_THE_LAST_ATTEMPT
    }


def locked(name: str) -> Callable[[], AbstractContextManager[None]]:
    return lambda: locked_folder(Path("run") / name, "working")


def damage_checkpoint() -> AbstractContextManager[None]:
    for file in Path("run/checkpoints").glob("step-*/rank-*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    return nullcontext()


def lose_encoders() -> AbstractContextManager[None]:
    """The encoders of the run are lost, and the log is another one."""
    shutil.rmtree("run/encoders")
    return nullcontext()


SMALL_MEMORY = {"planning__beyond_memory": {"memory": "1KB"}}
REFUSALS = {
    "other data": (nullcontext, {"data__folder": "other"}, RunFolderError, "was started on dataset"),
    "other data, encoders lost": (lose_encoders, {"data__folder": "other"}, RunFolderError, "was started on dataset"),
    "no data": (nullcontext, {"data__folder": "missing"}, DataError, "missing"),
    "another config": (nullcontext, {"training__batch_size": 64}, RunFolderError, "belongs to another config"),
    "a training in the folder": (locked(""), {}, RunFolderError, "another process is training in this folder"),
    "a writer of checkpoints": (locked("checkpoints"), {}, RunFolderError, "another process writes checkpoints here"),
    "too little memory": (nullcontext, SMALL_MEMORY, NoFeasiblePlan, "memory"),
    "a damaged checkpoint": (damage_checkpoint, {}, RunFolderError, "rank-"),
}


def check_refused(
    make_experiment: MakeExperiment, changes: dict[str, Any], error: type[ZigguratError], words: str
) -> None:
    """Asks for a training that differs from the run's in ``log_every``, too, which alone would be allowed."""
    before = contents(Path("run"))
    with pytest.raises(error, match=words):
        ziggurat.train(make_experiment(training__log_every=1, **changes), "run")
    assert contents(Path("run")) == before


@pytest.mark.parametrize("name", REFUSALS)
def test_nothing_of_a_run_changes_when_its_training_is_refused(make_experiment: MakeExperiment, name: str) -> None:
    happening, changes, error, words = REFUSALS[name]
    ziggurat.train(make_experiment(), "run", stop_after=2)
    Path("other").mkdir()
    write_log(Path("other/log.csv"), seed=1)
    with happening():
        check_refused(make_experiment, changes, error, words)


def test_a_run_that_can_be_continued_records_its_new_config(make_experiment: MakeExperiment) -> None:
    ziggurat.train(make_experiment(), "run", stop_after=2)
    ziggurat.train(make_experiment(training__log_every=1), "run", stop_after=3)
    assert ziggurat.load_run("run").experiment.training.log_every == 1


def test_a_run_without_a_step_is_replaced_only_by_one_that_can_begin(make_experiment: MakeExperiment) -> None:
    with pytest.raises(ConfigError, match="exceeds the"):
        ziggurat.train(make_experiment(training__batch_size=100_000), "run")
    before = contents(Path("run"))
    assert "config.yaml" in before
    with pytest.raises(DataError, match="missing"):
        ziggurat.train(make_experiment(data__folder="missing"), "run")
    assert contents(Path("run")) == before
    progress = RecordedNotes()
    ziggurat.train(make_experiment(), "run", progress=progress, stop_after=1)
    assert sum("starting again" in note for note in progress.notes) == 1
    assert ziggurat.load_run("run").experiment.training.batch_size == 128


@pytest.fixture
def readers(make_experiment: MakeExperiment) -> Iterator[tuple[str, str]]:
    """The addresses of a reader of the log, and of one of another log of the same form."""
    Path("other").mkdir()
    write_log(Path("other/log.csv"), seed=1)
    folders = [ziggurat.prepare(make_experiment(data__folder=each), f"data-{each}").folder for each in (".", "other")]
    served = [ReaderProcess(folder.resolve()) for folder in folders]
    yield served[0].address, served[1].address
    for each in served:
        each.stop()


def test_a_copy_of_a_refused_dataset_is_not_kept(make_experiment: MakeExperiment, readers: tuple[str, str]) -> None:
    """It would be taken for the run's own when the right readers are named later."""
    right, wrong = readers
    ziggurat.train(make_experiment(), "run", stop_after=2)
    check_refused(make_experiment, {"training__readers": [wrong]}, RunFolderError, "was started on dataset")
    features = make_experiment().model_dump(mode="json")["features"]
    features[1]["encoder"] = {"name": "hash", "rows": 50}
    with pytest.raises(ConfigError, match="was encoded by another config"):
        ziggurat.train(make_experiment(features=features, training__readers=[right]), "new")
    assert not Path("new/dataset").exists()
    assert ziggurat.train(make_experiment(training__readers=[right]), "new", stop_after=1).step == 1
    assert ziggurat.train(make_experiment(training__readers=[right]), "run", stop_after=3).step == 3
