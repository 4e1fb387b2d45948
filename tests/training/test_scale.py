"""Ladders of runs: trained once, gone on with after a signal, judged by a law with known constants."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import MakeExperiment
from ziggurat.core.errors import ConfigError, RunFolderError, ZigguratError
from ziggurat.core.progress import Silent
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.training import api
from ziggurat.training.experiment import to_yaml
from ziggurat.training.metrics_log import read_journal
from ziggurat.training.run import open_run
from ziggurat.training.scaling.model_sizes import Size, listed_experiments, size_of
from ziggurat.training.scaling.result import RungResult, RunResult, ScaleResult
from ziggurat.training.scaling.runs import examples_seen
from ziggurat.training.scaling.sweep import scale

LADDER = (
    "- {model.deep.hidden: [4]}\n- {model: {deep: {hidden: [16]}}}\n- {model.deep.hidden: [64], optimizer.lr: 0.002}\n"
)


class Heard(Silent):
    """Keeps what was said and which stages were begun."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.stages: list[str] = []

    def start(self, stage: str, total: float | None, unit: str) -> None:
        self.stages.append(stage)

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture
def ladder(tmp_path: Path) -> Path:
    path = tmp_path / "ladder.yaml"
    path.write_text(LADDER)
    return path


def test_a_ladder_is_trained_once_and_told(make_experiment: MakeExperiment, ladder: Path) -> None:
    experiment = make_experiment(training__epochs=1)
    heard = Heard()
    scaled = scale(experiment, "ladder", seeds=2, ladder=ladder, progress=heard)
    folders = [f"rung-0{rung}/seed-{seed}" for rung in (1, 2, 3) for seed in (3, 4)]
    assert (
        sorted(path.parent.relative_to("ladder").as_posix() for path in Path("ladder").glob("*/*/results.json"))
        == folders
    )
    assert [path.name for path in Path("prepared").iterdir() if path.is_dir()] == [
        Path(open_run(Path("ladder") / folders[0]).dataset().folder).name
    ]

    rungs = scaled.result.rungs
    rows = open_run(Path("ladder") / folders[0]).dataset().split("train").rows
    # 5 fields of 8 dims (user, item, tags, history, and age as x·v): FM, first order and MLP of one hidden layer.
    assert rungs[1].size.flops - rungs[0].size.flops == 2 * (33 * 12 + 12)
    assert rungs[1].size.dense_parameters - rungs[0].size.dense_parameters == 33 * 12 + 12 + 12
    assert rungs[0].size.table_parameters == 8 * sum(Dataset(next(Path("prepared").iterdir())).schema.rows.values())
    for rung, run in [(each, run) for each in rungs for run in each.runs]:
        alone = open_run(Path("ladder") / run.folder)
        assert alone.results is not None
        assert run.figures == alone.results["figures"]
        assert alone.experiment.model.model_dump(mode="json") == rung.model
        assert (run.examples, run.training_flops) == (rows, 3 * rung.size.flops * rows)
        assert run.seconds > 0
    assert open_run("ladder/rung-03/seed-3").experiment.optimizer.lr == 0.002
    assert open_run("ladder/rung-02/seed-3").experiment.optimizer.lr == experiment.optimizer.lr
    assert ScaleResult.load("ladder") == scaled.result

    fit = scaled.result.fit()
    assert fit is not None
    stored = json.loads(Path("ladder/scale.json").read_text())["fit"]
    assert stored["exponent"]["value"] == fit.law.exponent
    assert stored["verdict"] == fit.verdict
    said = [note for note in heard.notes if "log-loss" in note]
    assert [note.partition(":")[0] for note in said] == [
        f"rung {rung} of 3, seed {seed}" for seed in (3, 4) for rung in (1, 2, 3)
    ]

    before = {path: path.stat().st_mtime_ns for path in Path("ladder").glob("*/*/checkpoints/step-*/*")}
    again = Heard()
    assert scale(experiment, "ladder", seeds=2, ladder=ladder, progress=again).result == scaled.result
    assert "train" not in again.stages
    assert before == {path: path.stat().st_mtime_ns for path in Path("ladder").glob("*/*/checkpoints/step-*/*")}

    more = Heard()
    longer = scale(experiment, "ladder", seeds=3, ladder=ladder, progress=more)
    assert more.stages.count("train") == 3
    assert [rung.runs[:2] for rung in longer.result.rungs] == [rung.runs for rung in rungs]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_is_done_and_the_ladder_goes_on(
    make_experiment: MakeExperiment, ladder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    experiment = make_experiment(training__epochs=30, training__log_every=1, training__threads=1)
    config = tmp_path / "small.yaml"
    config.write_text(to_yaml(experiment))
    arguments = ["scale", str(config), "--run", "ladder", "--ladder", str(ladder), "--seeds", "1"]
    command = [sys.executable, "-m", "ziggurat", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as run:
        second = tmp_path / "ladder" / "rung-02" / "seed-3"
        for _ in range(4800):
            if len(read_journal(second / "metrics.jsonl")) > 5:
                break
            time.sleep(0.05)
        run.send_signal(number)
        _, errors = run.communicate(timeout=240)
    assert run.returncode == 128 + number, errors
    assert f"stopped by {number.name}; 1 of 3 runs finished" in errors
    kept = ScaleResult.load(tmp_path / "ladder")
    assert [len(rung.runs) for rung in kept.rungs] == [1, 0, 0]
    reached = open_run(second).checkpoints.last()
    assert reached is not None

    heard = Heard()
    gone_on = scale(experiment, "ladder", seeds=1, ladder=ladder, progress=heard)
    assert gone_on.signal is None
    assert gone_on.result.rungs[0] == kept.rungs[0]
    assert heard.stages.count("train") == 2
    assert any(f"going on at step {reached:,}" in note for note in heard.notes)
    whole = api.train(listed_experiments(experiment, ladder)[1], "whole")
    assert whole.results is not None
    assert gone_on.result.rungs[1].runs[0].figures == whole.results["figures"]


def test_a_signal_in_a_runs_last_step_stops_the_ladder(make_experiment: MakeExperiment, ladder: Path) -> None:
    class Impatient(Silent):
        """Presses Ctrl-C once, when the last rows of the first run are trained."""

        pressed = False

        def start(self, stage: str, total: float | None, unit: str) -> None:
            self.stage, self.total = stage, total

        def advance(self, done: float, **figures: float | str) -> None:
            if self.stage == "train" and done == self.total and not self.pressed:
                self.pressed = True
                os.kill(os.getpid(), signal.SIGINT)

    experiment = make_experiment(training__max_steps=2)
    scaled = scale(experiment, "ladder", seeds=1, ladder=ladder, progress=Impatient())
    assert scaled.signal == signal.SIGINT
    assert [len(rung.runs) for rung in scaled.result.rungs] == [1, 0, 0]
    assert scaled.result == ScaleResult.load("ladder")
    assert scale(experiment, "ladder", seeds=1, ladder=ladder).signal is None


def test_a_models_own_ladder_is_climbed(make_experiment: MakeExperiment) -> None:
    model = {"name": "wukong", "layers": 1, "fm_outputs": 2, "linear_outputs": 2, "rank": 2, "fm_mlp": {"hidden": [8]}}
    experiment = make_experiment(model=model, training__max_steps=4)
    result = scale(experiment, rungs=4, seeds=1, split="validation").result
    assert (Path("runs/small-scale/rung-04/seed-3")).is_dir()
    assert [rung.model["layers"] for rung in result.rungs] == [1, 2, 4, 4]
    assert [rung.model["fm_outputs"] for rung in result.rungs] == [2, 2, 2, 3]
    assert all(rung.runs[0].steps == 4 for rung in result.rungs)
    assert [rung.runs[0].examples for rung in result.rungs] == [512] * 4
    assert (result.model, result.split) == ("wukong", "validation")


@pytest.mark.parametrize(
    ("changes", "text", "message"),
    [
        ({}, LADDER.partition("\n")[0], "the ladder has 1 rungs"),
        ({}, "- {model.deep.hidden: [4]}\n" * 3, r"rung 2 costs [\d,]+ FLOPs per example, no more than the"),
        ({}, "- {model.depp: 3}", "rung 1: 1 problem\n.*model.deepfm.depp: unknown key|model.depp: unknown key"),
        ({}, "- {data.folder: x}", "rung 1: data.folder: rungs share all but model, embeddings, optimizer, training"),
        ({}, "- {model.name.x: 3}", "rung 1: model.name.x: 'x' lies below 'deepfm'"),
        ({}, "model: {layers: 3}", "expected a list of changes, one a rung"),
        ({}, "- [", "cannot be read as a ladder"),
        ({"data__split": {"name": "random", "test": 0}}, LADDER, "the test split has no rows"),
        ({"model": {"name": "fm"}}, None, "model fm has no width that could grow"),
        ({"checkpoints": {"store": "/data/checkpoints"}}, LADDER, "/data/checkpoints can hold one run's checkpoints"),
    ],
)
def test_what_is_no_ladder_is_refused_before_training(
    make_experiment: MakeExperiment, ladder: Path, changes: dict[str, Any], text: str | None, message: str
) -> None:
    ladder.write_text(text or "")
    with pytest.raises(ConfigError, match=message):
        scale(make_experiment(**changes), "ladder", ladder=None if text is None else ladder)
    assert not Path("ladder").exists()


def test_another_config_or_folder_is_refused(make_experiment: MakeExperiment, ladder: Path) -> None:
    scale(make_experiment(training__max_steps=2), "ladder", seeds=1, ladder=ladder)
    with pytest.raises(RunFolderError, match=r"rung 1, seed 3: .*belongs to another config\n  training.batch_size"):
        scale(make_experiment(training__max_steps=2, training__batch_size=64), "ladder", seeds=1, ladder=ladder)
    with pytest.raises(RunFolderError, match="is the folder of a single run and holds no ladder"):
        scale(make_experiment(), "ladder/rung-01/seed-3", ladder=ladder)
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("do not touch")
    with pytest.raises(RunFolderError, match="is not empty and holds no ladder"):
        scale(make_experiment(), "mine", ladder=ladder)
    with pytest.raises(RunFolderError, match=r"nowhere: no ladder \(scale.json is missing\)"):
        ScaleResult.load("nowhere")


def test_an_error_names_rung_and_seed(make_experiment: MakeExperiment, ladder: Path) -> None:
    ladder.write_text(LADDER.replace("optimizer.lr: 0.002", "optimizer: {name: sgd, lr: 1.0e+30}"))
    with pytest.raises(ZigguratError, match="rung 3, seed 3: the training loss became"):
        scale(make_experiment(training__log_every=1), "ladder", seeds=1, ladder=ladder)
    assert [len(rung.runs) for rung in ScaleResult.load("ladder").rungs] == [1, 1, 0]


def test_examples_by_hand() -> None:
    """1000 rows in batches of 300: steps of 300, 300, 300 and 100."""
    assert [examples_seen(steps, 1000, 300) for steps in (0, 1, 3, 4, 5, 8)] == [0, 300, 900, 1000, 1300, 2000]


def test_size_by_hand(make_experiment: MakeExperiment) -> None:
    """Logistic regression: four dims a task; one weight for age and a bias; two FLOPs for age and one a dim."""
    experiment = make_experiment(model={"name": "logistic_regression"})
    schema = api.prepare(experiment).schema
    assert size_of(experiment, schema) == Size(2 + 4 * 4, 2, 4 * sum(schema.rows.values()))


def sample(losses: list[list[float]], tasks: tuple[str, ...] = ("",)) -> ScaleResult:
    rungs = tuple(
        RungResult(
            number,
            {"name": "wukong", "layers": number},
            Size(10**number, 2, 3),
            tuple(
                RunResult(
                    seed,
                    f"rung-{number:02d}/seed-{seed}",
                    5,
                    6,
                    7,
                    0.5,
                    {"test": {f"{task}log_loss": loss + k for k, task in enumerate(tasks)}},
                )
                for seed, loss in enumerate(values)
            ),
        )
        for number, values in enumerate(losses, 1)
    )
    return ScaleResult("shop", "test", "f00", 2, rungs, {"model": {"name": "wukong"}})


def test_means_and_the_law_are_over_finished_rungs_and_tasks(tmp_path: Path) -> None:
    result = sample([[0.5, 0.7], [0.4], [0.35], []], ("click/", "buy/"))
    assert result.rungs[0].mean("test", "log_loss") == pytest.approx(0.6 + 0.5)
    assert result.rungs[3].runs == ()
    fit = result.fit()
    assert fit is not None
    assert fit.law([10, 100]) == pytest.approx([1.1, 0.9], abs=0.02)
    assert sample([[0.5], [0.4]]).fit() is None
    undefined = replace(result.rungs[0].runs[0], figures={"test": {"auc": float("nan")}})
    odd = replace(result, rungs=(replace(result.rungs[0], runs=(undefined,)),))
    odd.save(tmp_path)
    assert json.loads((tmp_path / "scale.json").read_text())["rungs"][0]["runs"][0]["figures"] == {
        "test": {"auc": None}
    }
    assert repr(ScaleResult.load(tmp_path)) == repr(odd)
