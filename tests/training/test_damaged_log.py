"""A training that resumes beside a damaged ``metrics.jsonl`` says once what is lost, and trains as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.conftest import MakeExperiment, RecordedNotes
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.metrics_log import read_metrics_log

Lines = list[bytes]
STEP = 7


def of_step(line: bytes, split: str, step: int) -> bool:
    return line.startswith(b'{"split": "%s", "step": %d,' % (split.encode(), step))


def experiment_of(make_experiment: MakeExperiment) -> Experiment:
    return make_experiment(training__evaluate_every=4, training__log_every=2, training__max_steps=10)


DAMAGES: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "a line lost": (lambda lines: lines[1:], "1 are lost (1 of 'train')"),
    "the evaluation lost": (lambda lines: [each for each in lines if b"validation" not in each], "of 'validation')"),
    "emptied": (lambda lines: [], "up to step 7 "),
    "doubled": (lambda lines: lines * 2, "records are there more than once"),
    "cut in the last line before the checkpoint": (
        lambda lines: [*[each for each in lines[:-1] if not of_step(each, "train", STEP)], b'{"split": "tr'],
        "1 are lost (1 of 'train')",
    ),
}


@pytest.fixture
def run(make_experiment: MakeExperiment) -> Path:
    api.train(experiment_of(make_experiment), "run", stop_after=STEP)
    return Path("run")


@pytest.mark.parametrize("name", [*DAMAGES, "deleted"])
def test_a_damaged_log_is_noted_once(make_experiment: MakeExperiment, run: Path, name: str) -> None:
    path, experiment = run / "metrics.jsonl", experiment_of(make_experiment)
    change, text = DAMAGES.get(name, (None, "up to step 7 "))
    if change is None:
        path.unlink()
    else:
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    progress = RecordedNotes()
    assert api.train(experiment, run, progress=progress).step == 10
    (note,) = [each for each in progress.notes if "metrics.jsonl" in each]
    assert note.startswith("run/metrics.jsonl: is damaged: ")
    assert text in note
    places = [(record["split"], record["step"]) for record in read_metrics_log(path)]
    assert len(places) == len(set(places))
    again = RecordedNotes()
    api.train(experiment, run, progress=again)  # the last checkpoint counts what the log has now
    assert not [each for each in again.notes if "metrics.jsonl" in each]


@pytest.mark.parametrize("name", ["whole", "cut after the checkpoint", "later lines"])
def test_what_a_kill_leaves_says_nothing(make_experiment: MakeExperiment, run: Path, name: str) -> None:
    path = run / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if name == "cut after the checkpoint":  # the line that says that the checkpoint is complete
        assert of_step(lines[-1], "checkpoint", STEP)
        path.write_bytes(b"".join([*lines[:-1], lines[-1][:20]]))
    elif name == "later lines":
        path.write_bytes(path.read_bytes() + b'{"split": "train", "step": 8, "ep')
    progress = RecordedNotes()
    api.train(experiment_of(make_experiment), run, progress=progress)
    assert not [each for each in progress.notes if "metrics.jsonl" in each]
