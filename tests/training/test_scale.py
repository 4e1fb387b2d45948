"""Scaling sweeps: they train each run once, resume after a signal, and fit a law with known constants."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Command
from tests.training.conftest import MakeExperiment
from ziggurat.core.errors import ConfigError, RunFolderError, ZigguratError
from ziggurat.core.progress import Silent
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.training import api
from ziggurat.training.experiment import to_yaml
from ziggurat.training.run_folder.metrics_log import read_metrics_log
from ziggurat.training.run_folder.run import open_run
from ziggurat.training.scaling.model_sizes import Size, listed_experiments, size_of
from ziggurat.training.scaling.result import RunResult, ScaleResult, SizeResult
from ziggurat.training.scaling.runs import examples_seen
from ziggurat.training.scaling.sweep import scale

SIZES = (
    "- {model.deep.hidden: [4]}\n- {model: {deep: {hidden: [16]}}}\n- {model.deep.hidden: [64], optimizer.lr: 0.002}\n"
)


class Recorder(Silent):
    """Records the notes and the stages that were started."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.stages: list[str] = []

    def start(self, stage: str, total: float | None, unit: str) -> None:
        self.stages.append(stage)

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture
def sizes_file(tmp_path: Path) -> Path:
    """Returns a file that lists three growing sizes."""
    path = tmp_path / "sizes.yaml"
    path.write_text(SIZES)
    return path


def test_a_sweep_is_trained_once_and_reported(make_experiment: MakeExperiment, sizes_file: Path) -> None:
    experiment = make_experiment(training__epochs=1)
    recorder = Recorder()
    scaled = scale(experiment, "sweep", seeds=2, sizes_file=sizes_file, progress=recorder)
    folders = [f"rung-0{number}/seed-{seed}" for number in (1, 2, 3) for seed in (3, 4)]
    assert (
        sorted(path.parent.relative_to("sweep").as_posix() for path in Path("sweep").glob("*/*/results.json"))
        == folders
    )
    assert [path.name for path in Path("prepared").iterdir() if path.is_dir()] == [
        Path(open_run(Path("sweep") / folders[0]).dataset().folder).name
    ]

    sizes = scaled.result.sizes
    rows = open_run(Path("sweep") / folders[0]).dataset().split("train").rows
    # 5 fields of 8 dims (user, item, tags, history, and age as x·v): FM, first order and MLP of one hidden layer.
    assert sizes[1].size.flops - sizes[0].size.flops == 2 * (33 * 12 + 12)
    assert sizes[1].size.dense_parameters - sizes[0].size.dense_parameters == 33 * 12 + 12 + 12
    assert sizes[0].size.table_parameters == 8 * sum(Dataset(next(Path("prepared").iterdir())).schema.rows.values())
    for entry, run in [(each, run) for each in sizes for run in each.runs]:
        alone = open_run(Path("sweep") / run.folder)
        assert alone.results is not None
        assert run.figures == alone.results["figures"]
        assert alone.experiment.model.model_dump(mode="json") == entry.model
        assert (run.examples, run.training_flops) == (rows, 3 * entry.size.flops * rows)
        assert run.seconds > 0
    assert open_run("sweep/rung-03/seed-3").experiment.optimizer.lr == 0.002
    assert open_run("sweep/rung-02/seed-3").experiment.optimizer.lr == experiment.optimizer.lr
    assert ScaleResult.load("sweep") == scaled.result

    fit = scaled.result.fit()
    assert fit is not None
    stored = json.loads(Path("sweep/scale.json").read_text())["fit"]
    assert stored["exponent"]["value"] == fit.law.exponent
    assert stored["verdict"] == fit.verdict
    reports = [note for note in recorder.notes if "log-loss" in note]
    assert [note.partition(":")[0] for note in reports] == [
        f"size {number} of 3, seed {seed}" for seed in (3, 4) for number in (1, 2, 3)
    ]

    before = {path: path.stat().st_mtime_ns for path in Path("sweep").glob("*/*/checkpoints/step-*/*")}
    again = Recorder()
    assert scale(experiment, "sweep", seeds=2, sizes_file=sizes_file, progress=again).result == scaled.result
    assert "train" not in again.stages
    assert before == {path: path.stat().st_mtime_ns for path in Path("sweep").glob("*/*/checkpoints/step-*/*")}

    more = Recorder()
    longer = scale(experiment, "sweep", seeds=3, sizes_file=sizes_file, progress=more)
    assert more.stages.count("train") == 3
    assert [entry.runs[:2] for entry in longer.result.sizes] == [entry.runs for entry in sizes]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_finished_runs_and_the_sweep_resumes(
    make_experiment: MakeExperiment, sizes_file: Path, tmp_path: Path, number: signal.Signals
) -> None:
    experiment = make_experiment(training__epochs=30, training__log_every=1, training__threads=1)
    config = tmp_path / "small.yaml"
    config.write_text(to_yaml(experiment))
    arguments = ["--run", "sweep", "--sizes-file", str(sizes_file), "--seeds", "1"]
    run = Command("scale", str(config), *arguments, folder=tmp_path)
    second = tmp_path / "sweep" / "rung-02" / "seed-3"
    for _ in range(4800):
        if len(read_metrics_log(second / "metrics.jsonl")) > 5:
            break
        time.sleep(0.05)
    run.send_signal(number)
    _, errors = run.communicate()
    assert run.returncode == 128 + number, errors
    assert f"stopped by {number.name}; 1 of 3 runs finished" in errors
    kept = ScaleResult.load(tmp_path / "sweep")
    assert [len(entry.runs) for entry in kept.sizes] == [1, 0, 0]
    reached = open_run(second).checkpoints.last()
    assert reached is not None

    recorder = Recorder()
    resumed = scale(experiment, "sweep", seeds=1, sizes_file=sizes_file, progress=recorder)
    assert resumed.signal is None
    assert resumed.result.sizes[0] == kept.sizes[0]
    assert recorder.stages.count("train") == 2
    assert any(f"resuming at step {reached:,}" in note for note in recorder.notes)
    whole = api.train(listed_experiments(experiment, sizes_file)[1], "whole")
    assert whole.results is not None
    assert resumed.result.sizes[1].runs[0].figures == whole.results["figures"]


def test_a_signal_in_the_last_step_of_a_run_stops_the_sweep(make_experiment: MakeExperiment, sizes_file: Path) -> None:
    class Interrupter(Silent):
        """Sends SIGINT once, after the last rows of the first run."""

        sent = False

        def start(self, stage: str, total: float | None, unit: str) -> None:
            self.stage, self.total = stage, total

        def advance(self, done: float, **figures: float | str) -> None:
            if self.stage == "train" and done == self.total and not self.sent:
                self.sent = True
                os.kill(os.getpid(), signal.SIGINT)

    experiment = make_experiment(training__max_steps=2)
    scaled = scale(experiment, "sweep", seeds=1, sizes_file=sizes_file, progress=Interrupter())
    assert scaled.signal == signal.SIGINT
    assert [len(entry.runs) for entry in scaled.result.sizes] == [1, 0, 0]
    assert scaled.result == ScaleResult.load("sweep")
    assert scale(experiment, "sweep", seeds=1, sizes_file=sizes_file).signal is None


def test_the_growing_sizes_of_a_model_are_trained(make_experiment: MakeExperiment) -> None:
    model = {"name": "wukong", "layers": 1, "fm_outputs": 2, "linear_outputs": 2, "rank": 2, "fm_mlp": {"hidden": [8]}}
    experiment = make_experiment(model=model, training__max_steps=4)
    result = scale(experiment, sizes=4, seeds=1, split="validation").result
    assert (Path("runs/small-scale/rung-04/seed-3")).is_dir()
    assert [entry.model["layers"] for entry in result.sizes] == [1, 2, 4, 4]
    assert [entry.model["fm_outputs"] for entry in result.sizes] == [2, 2, 2, 3]
    assert all(entry.runs[0].steps == 4 for entry in result.sizes)
    assert [entry.runs[0].examples for entry in result.sizes] == [512] * 4
    assert (result.model, result.split) == ("wukong", "validation")


@pytest.mark.parametrize(
    ("changes", "text", "message"),
    [
        ({}, SIZES.partition("\n")[0], "needs three model sizes or more, received 1"),
        ({}, "- {model.deep.hidden: [4]}\n" * 3, r"size 2 costs [\d,]+ FLOPs per example, no more than the"),
        ({}, "- {model.depp: 3}", "size 1: 1 problem\n.*model.deepfm.depp: unknown key|model.depp: unknown key"),
        ({}, "- {data.folder: x}", "data.folder: sizes may differ only in model, embeddings, optimizer, training"),
        ({}, "- {model.name.x: 3}", "size 1: model.name.x: 'x' lies below 'deepfm'"),
        ({}, "model: {layers: 3}", "expected a list with the changes of each size"),
        ({}, "- [", "is not valid YAML"),
        ({"data__split": {"name": "random", "test": 0}}, SIZES, "the test split has no rows"),
        ({"model": {"name": "fm"}}, None, "model fm has no width that could grow"),
        ({"checkpoints": {"store": "/data/checkpoints"}}, SIZES, "/data/checkpoints can hold the checkpoints of one"),
    ],
)
def test_an_invalid_sweep_is_refused_before_training(
    make_experiment: MakeExperiment, sizes_file: Path, changes: dict[str, Any], text: str | None, message: str
) -> None:
    sizes_file.write_text(text or "")
    with pytest.raises(ConfigError, match=message):
        scale(make_experiment(**changes), "sweep", sizes_file=None if text is None else sizes_file)
    assert not Path("sweep").exists()


def test_another_config_or_folder_is_refused(make_experiment: MakeExperiment, sizes_file: Path) -> None:
    scale(make_experiment(training__max_steps=2), "sweep", seeds=1, sizes_file=sizes_file)
    with pytest.raises(RunFolderError, match=r"size 1, seed 3: .*belongs to another config\n  training.batch_size"):
        scale(make_experiment(training__max_steps=2, training__batch_size=64), "sweep", seeds=1, sizes_file=sizes_file)
    with pytest.raises(RunFolderError, match="is the folder of a single run and holds no scaling sweep"):
        scale(make_experiment(), "sweep/rung-01/seed-3", sizes_file=sizes_file)
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("do not touch")
    with pytest.raises(RunFolderError, match="is not empty and holds no scaling sweep"):
        scale(make_experiment(), "mine", sizes_file=sizes_file)
    with pytest.raises(RunFolderError, match=r"nowhere: holds no scaling sweep \(scale.json is missing\)"):
        ScaleResult.load("nowhere")


def test_an_error_names_size_and_seed(make_experiment: MakeExperiment, sizes_file: Path) -> None:
    sizes_file.write_text(SIZES.replace("optimizer.lr: 0.002", "optimizer: {name: sgd, lr: 1.0e+30}"))
    with pytest.raises(ZigguratError, match="size 3, seed 3: the training loss became"):
        scale(make_experiment(training__log_every=1), "sweep", seeds=1, sizes_file=sizes_file)
    assert [len(entry.runs) for entry in ScaleResult.load("sweep").sizes] == [1, 1, 0]


def test_examples_by_hand() -> None:
    """1000 rows in batches of 300: steps of 300, 300, 300 and 100."""
    assert [examples_seen(steps, 1000, 300) for steps in (0, 1, 3, 4, 5, 8)] == [0, 300, 900, 1000, 1300, 2000]


def test_size_by_hand(make_experiment: MakeExperiment) -> None:
    """Logistic regression: four dims per task; one weight for age and a bias; two FLOPs for age and one per dim."""
    experiment = make_experiment(model={"name": "logistic_regression"})
    schema = api.prepare(experiment).schema
    assert size_of(experiment, schema) == Size(2 + 4 * 4, 2, 4 * sum(schema.rows.values()))


def sample(losses: list[list[float]], tasks: tuple[str, ...] = ("",)) -> ScaleResult:
    sizes = tuple(
        SizeResult(
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
    return ScaleResult("shop", "test", "f00", 2, sizes, {"model": {"name": "wukong"}})


def test_means_and_the_law_are_over_finished_sizes_and_tasks(tmp_path: Path) -> None:
    result = sample([[0.5, 0.7], [0.4], [0.35], []], ("click/", "buy/"))
    assert result.sizes[0].mean("test", "log_loss") == pytest.approx(0.6 + 0.5)
    assert result.sizes[3].runs == ()
    fit = result.fit()
    assert fit is not None
    assert fit.law([10, 100]) == pytest.approx([1.1, 0.9], abs=0.02)
    assert sample([[0.5], [0.4]]).fit() is None
    undefined = replace(result.sizes[0].runs[0], figures={"test": {"auc": float("nan")}})
    incomplete = replace(result, sizes=(replace(result.sizes[0], runs=(undefined,)),))
    incomplete.save(tmp_path)
    assert json.loads((tmp_path / "scale.json").read_text())["rungs"][0]["runs"][0]["figures"] == {
        "test": {"auc": None}
    }
    assert repr(ScaleResult.load(tmp_path)) == repr(incomplete)
