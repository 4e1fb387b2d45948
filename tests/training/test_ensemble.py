"""Ensembles of runs: their outputs are the weighted means of their members', and whatever is wrong names the member."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
import torch

import ziggurat
from tests.training.conftest import MakeExperiment
from ziggurat.core.errors import ConfigError, RunFolderError
from ziggurat.core.sealed import sealed
from ziggurat.data.encoded.columns import Columns
from ziggurat.metrics.metric_set import MetricSet
from ziggurat.training import api
from ziggurat.training.ensemble.combined import CombinedRecommender
from ziggurat.training.ensemble.ensemble import Ensemble

MODELS: tuple[dict[str, Any], ...] = (
    {"name": "deepfm", "deep": {"hidden": [32, 16]}},
    {"name": "dcn_v2", "deep": {"hidden": [16]}},
    {"name": "logistic_regression"},
)
LABELS: list[dict[str, Any]] = [
    {"name": "click"},
    {"name": "count", "column": "when", "kind": "regression", "loss": {"name": "poisson"}},
    {"name": "when", "kind": "regression", "loss": {"name": "quantile", "levels": [0.2, 0.5, 0.9]}},
    {"name": "level", "kind": "ordinal", "column": "buy"},
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the runs are trained, once; each test has a copy."""
    return tmp_path_factory.mktemp("trained")


@pytest.fixture
def runs(make_experiment: MakeExperiment, trained: Path) -> list[Path]:
    """Runs of three models on one prepared dataset."""
    if not any(trained.iterdir()):
        for number, model in enumerate(MODELS):
            api.train(make_experiment(model=model, training__epochs=2, training__seed=number), f"runs/{number}")
        shutil.copytree(Path.cwd(), trained, dirs_exist_ok=True)
    else:
        shutil.copytree(trained, Path.cwd(), dirs_exist_ok=True)
    return [Path(f"runs/{number}") for number in range(len(MODELS))]


def frame() -> pl.DataFrame:
    return pl.read_csv("log.csv", schema_overrides={"tags": pl.String, "history": pl.String})


def columns_of(model: Path, split: str = "test") -> npt.NDArray[np.float32]:
    """Returns what the model of a run computes for the rows of a split, all in one batch."""
    with api.Predictor(model) as predictor, torch.no_grad():
        blocks = api.load_run(Path("runs/0")).dataset().split(split)  # pyright: ignore[reportArgumentType]
        rows = [blocks.read(block) for block in range(len(blocks.blocks))]
        schema = api.load_run(Path("runs/0")).dataset().schema
        columns = Columns(rows, schema)
        return predictor.recommender(columns.batch(np.arange(columns.rows)))[0].numpy()


def weighted(ensemble: Ensemble, label: str = "click") -> npt.NDArray[np.float32]:
    total = sum(member.weights[label] * columns_of(member.run.folder).astype(np.float64) for member in ensemble.members)
    return np.asarray(total).astype(np.float32)


def test_the_outputs_are_the_weighted_means_of_the_members_to_the_bit(runs: list[Path]) -> None:
    built = api.build_ensemble(runs, "both")
    chosen = built.chosen["click"]
    assert [str(each) for each in built.candidates] == [f"runs/{n}, step {_best(run):,}" for n, run in enumerate(runs)]
    assert chosen.loss < min(chosen.losses_M)
    assert len(built.ensemble.members) >= 2
    ensemble = Ensemble.open("both")
    assert ensemble == built.ensemble
    np.testing.assert_array_equal(columns_of(Path("both")), weighted(ensemble))


def _best(run: Path) -> int:
    return api.load_run(run).checkpoints.resolve("best")


def test_the_losses_are_those_of_evaluation(runs: list[Path]) -> None:
    chosen = api.build_ensemble(runs, "both").chosen["click"]
    for run, loss in zip(runs, chosen.losses_M, strict=True):
        assert api.evaluate(run, "validation").compute()["log_loss"] == pytest.approx(loss, abs=1e-6)
    assert api.evaluate("both", "validation").compute()["log_loss"] == pytest.approx(chosen.loss, abs=1e-6)


def test_it_is_evaluated_as_a_run_is(runs: list[Path]) -> None:
    ensemble = api.build_ensemble(runs, "both", equal_weights=True).ensemble
    assert [member.weights["click"] for member in ensemble.members] == [1 / 3] * 3
    run = api.load_run(runs[0])
    found = api.evaluate("both", "test")
    assert found.slices == ("user",)
    assert found.slice_figures().keys() == api.evaluate(run, "test").slice_figures().keys()
    expected = MetricSet(run.experiment.tasks())
    blocks, schema = run.dataset().split("test"), run.dataset().schema
    columns = Columns([blocks.read(block) for block in range(len(blocks.blocks))], schema)
    labels_BT = columns.batch(np.arange(columns.rows)).labels_BT
    expected.update(weighted(ensemble), labels_BT.numpy())
    for name in ("log_loss", "auc", "ne"):
        assert found.compute()[name] == expected.compute()[name]


def test_files_and_rows_in_memory_are_predicted_alike(runs: list[Path]) -> None:
    api.build_ensemble(runs, "both", equal_weights=True)
    expected = ziggurat.predict("both", frame())
    outcome = api.predict_files("both", ["log.csv"], "out.parquet")
    assert outcome.rows == len(expected)
    np.testing.assert_array_equal(pl.read_parquet("out.parquet")["probability"].to_numpy(), expected[:, 0])
    logits = [np.log(p) - np.log1p(-p) for p in (ziggurat.predict(run, frame()).astype(np.float64) for run in runs)]
    np.testing.assert_allclose(expected, 1 / (1 + np.exp(-np.mean(logits, axis=0))), atol=1e-5)


def test_a_run_can_be_swapped_for_an_ensemble(runs: list[Path]) -> None:
    api.build_ensemble(runs, "both", equal_weights=True)
    alone, together = (ziggurat.predict(each, frame()) for each in (runs[0], "both"))
    with api.SwappablePredictor(runs[0]) as predictor:
        np.testing.assert_array_equal(predictor.predict(frame()), alone)
        predictor.swap("both")
        np.testing.assert_array_equal(predictor.predict(frame()), together)
        predictor.swap(runs[0])
        np.testing.assert_array_equal(predictor.predict(frame()), alone)


def test_labels_of_each_kind_are_averaged_before_the_inverse_link(make_experiment: MakeExperiment) -> None:
    runs: list[Path] = []
    for seed in range(2):
        experiment = make_experiment(data__labels=LABELS, training__epochs=1, training__seed=seed)
        runs.append(api.train(experiment, f"runs/{seed}").run.folder)
    ensemble = api.build_ensemble(runs, "both").ensemble
    tasks = ensemble.experiment.tasks(ensemble.transform().schema)
    assert [task.columns for task in tasks] == [1, 1, 3, 1]
    per_column = [[m.weights[t.name] for t in tasks for _ in range(t.columns)] for m in ensemble.members]
    parts = [columns_of(m.run.folder).astype(np.float64) for m in ensemble.members]
    expected = sum(part * np.array(w) for part, w in zip(parts, per_column, strict=True))
    columns = columns_of(Path("both"))
    np.testing.assert_array_equal(columns, np.asarray(expected).astype(np.float32))
    with api.Predictor("both") as predictor:
        predictions = predictor.predict(frame().head(50))
    counts = predictions[:, 1]
    assert (counts > 0).all()
    with api.Predictor(runs[0]) as first, api.Predictor(runs[1]) as second:
        alone = np.stack([each.predict(frame().head(50))[:, 1].astype(np.float64) for each in (first, second)])
    shares = np.array([ensemble.weights[n]["count"] if n < len(ensemble.members) else 0.0 for n in range(2)])
    if len(ensemble.members) == 2:
        np.testing.assert_allclose(counts, np.exp(shares @ np.log(alone)), rtol=1e-5)


def test_a_tree_that_is_moved_as_a_whole_still_works(runs: list[Path]) -> None:
    api.build_ensemble(runs, "runs/both", equal_weights=True)
    before = ziggurat.predict("runs/both", frame())
    shutil.move("runs", "elsewhere")
    np.testing.assert_array_equal(ziggurat.predict("elsewhere/both", frame()), before)
    np.testing.assert_array_equal(ziggurat.predict(Path("elsewhere/both").resolve(), frame()), before)


def test_an_ensemble_is_replaced_but_nothing_else(runs: list[Path]) -> None:
    api.build_ensemble(runs[:2], "both", equal_weights=True)
    api.build_ensemble(runs, "both", equal_weights=True)
    assert len(Ensemble.open("both").members) == 3
    with pytest.raises(RunFolderError, match="runs/0: is the folder of a single run and holds no ensemble") as caught:
        api.build_ensemble(runs, runs[0])
    assert caught.value.hint == "name another folder with --out"


def test_what_is_no_ensemble_is_refused(runs: list[Path], make_experiment: MakeExperiment) -> None:
    with pytest.raises(ConfigError, match="runs/0: has no snapshots, so there is nothing to average"):
        api.build_ensemble(runs[0], "both")
    with pytest.raises(ConfigError, match=r"runs/0, step .*: is named twice"):
        api.build_ensemble([runs[0], Path("runs/../runs/0")], "both")
    other = api.train(make_experiment(data__split__validation=0.2, training__epochs=1), "runs/other").run
    with pytest.raises(RunFolderError, match="runs/other and runs/0: trained on other prepared data: dataset"):
        api.build_ensemble([*runs, other], "both")
    with pytest.raises(RunFolderError, match="nowhere: no run folder"):
        api.build_ensemble([*runs, "nowhere"], "both")
    assert not Path("both").exists()


def test_other_labels_and_losses_are_refused(make_experiment: MakeExperiment) -> None:
    runs: list[Path] = []
    for number, loss in enumerate(("squared", "poisson")):
        labels = [{"name": "when", "kind": "regression", "loss": {"name": loss}}]
        experiment = make_experiment(data__labels=labels, training__epochs=1)
        runs.append(api.train(experiment, f"runs/{number}").run.folder)
    with pytest.raises(RunFolderError, match=r"label 'when' is regression with .*poisson.* runs/0 .*squared") as one:
        api.build_ensemble(runs, "both")
    assert "the same losses" in one.value.hint


def test_without_validation_rows_only_equal_weights_are_possible(make_experiment: MakeExperiment) -> None:
    runs: list[Path] = []
    for seed in range(2):
        changes: dict[str, Any] = {"data__split__validation": 0.0, "training__epochs": 1, "training__seed": seed}
        runs.append(api.train(make_experiment(**changes), f"runs/{seed}").run.folder)
    with pytest.raises(ConfigError, match="has no validation rows, by which weights are chosen") as caught:
        api.build_ensemble(runs, "both")
    assert "--equal" in caught.value.hint
    built = api.build_ensemble(runs, "both", equal_weights=True)
    assert (built.chosen, built.ensemble.weights) == ({}, [{"click": 0.5}, {"click": 0.5}])
    assert ziggurat.predict("both", frame()).shape == (3000, 1)


def test_a_checkpoint_of_an_ensemble_cannot_be_chosen(runs: list[Path]) -> None:
    api.build_ensemble(runs, "both", equal_weights=True)
    for use in (lambda: api.evaluate("both", checkpoint="last"), lambda: api.Predictor("both", "last")):
        with pytest.raises(ConfigError, match="checkpoint 'last': both is an ensemble"):
            use()
    with pytest.raises(RunFolderError, match="both: is an ensemble, not a run"):
        api.load_run("both")


def test_whatever_happens_to_a_member_is_told_with_its_name(runs: list[Path], make_experiment: MakeExperiment) -> None:
    api.build_ensemble(runs, "both", equal_weights=True)
    step = _best(runs[1])
    shutil.copytree("runs", "copy")

    def problem() -> str:
        with pytest.raises(RunFolderError) as caught:
            ziggurat.predict("both", frame())
        shutil.rmtree("runs")
        shutil.copytree("copy", "runs")
        return caught.value.problem

    shutil.rmtree(runs[1])
    assert (
        problem()
        == f"both/ensemble.json: member 2 (runs/1, step {step}): runs/1: no run folder (config.yaml is missing)"
    )
    shutil.rmtree(runs[1] / "checkpoints" / f"step-{step:08d}")
    assert "member 2 (runs/1" in (found := problem())
    assert f"no checkpoint of step {step}" in found
    shutil.rmtree(runs[1])
    shutil.copytree(runs[0], runs[1])
    assert "member 2 (runs/1" in (found := problem())
    assert "the ensemble was made with run" in found
    file = next((runs[1] / "checkpoints" / f"step-{step:08d}").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-9] + b"tampered!")
    assert "both: member runs/1, step" in problem()
    (runs[1] / "dataset.json").unlink()
    assert "member 2 (runs/1" in problem()
    (runs[0] / "encoders" / "transform.json").write_text("{")
    assert "both: member runs/0, step" in problem()
    assert ziggurat.predict("both", frame()).shape == (3000, 1)


def _forged(change: Callable[[dict[str, Any]], None]) -> None:
    path = Path("both/ensemble.json")
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(sealed(values)))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda v: v["members"][0].update(run="/etc"), "names the run '/etc'; a relative path"),
        (lambda v: v["members"][0].update(run="../runs/../../x"), "names the file '..'"),
        (lambda v: v["members"][0].update(run=".."), "names the run '..'"),
        (lambda v: v["members"][0].update(run="../a//b"), "names the run"),
        (lambda v: v["members"][0].update(run="../a\nb"), "names the file"),
        (lambda v: v["members"][0].update(step="best"), "members.0.step: expected"),
        (lambda v: v["members"][0].update(step=-1), "received the step -1"),
        (lambda v: v["members"][0].update(weights={"buy": 1.0}), "member 1 has weights for"),
        (lambda v: v["members"][0].update(weights={"click": 0.9}), "sum to 1.56667, not to 1"),
        (lambda v: v["members"][0].update(weights={"click": float("nan")}), "the weight for 'click' is nan"),
        (lambda v: v["members"][0].update(weights={"click": -1}), "the weight for 'click' is -1"),
        (lambda v: v.update(members=[]), "has 0 members"),
        (lambda v: v.update(labels=["buy"]), "has weights for"),
        (lambda v: v.update(dataset="0" * 32), "trained on other prepared data"),
        (lambda v: v.update(encoders="0" * 32), "trained with other encoders"),
        (lambda v: v.update(ensemble_version=2), "ensemble format 2"),
    ],
)
def test_nothing_in_the_file_is_trusted(
    runs: list[Path], change: Callable[[dict[str, Any]], None], problem: str
) -> None:
    api.build_ensemble(runs, "both", equal_weights=True)
    _forged(change)
    with pytest.raises(RunFolderError, match=r"both/ensemble\.json: ") as caught:
        Ensemble.open("both")
    assert problem in caught.value.problem


def test_a_damaged_file_is_refused(runs: list[Path]) -> None:
    api.build_ensemble(runs[:2], "both", equal_weights=True)
    path = Path("both/ensemble.json")
    text = path.read_text()
    path.write_text(text.replace('"click": 0.5', '"click": 0.4', 1))
    with pytest.raises(RunFolderError, match="its content differs from its checksum"):
        Ensemble.open("both")
    path.write_text(text[:-20])
    with pytest.raises(RunFolderError, match="is not valid JSON"):
        Ensemble.open("both")
    path.unlink()
    with pytest.raises(RunFolderError, match=r"both: no ensemble \(ensemble.json is missing\)"):
        Ensemble.open("both")


def test_a_member_that_computes_no_number_is_named(runs: list[Path]) -> None:
    api.build_ensemble(runs[:2], "both", equal_weights=True)
    with api.Predictor("both") as predictor:
        recommender = predictor.recommender
        assert isinstance(recommender, CombinedRecommender)
        for each in recommender.members[1].lookup.tensor_slices():
            each.tensor.detach().fill_(float("nan"))
        with pytest.raises(RunFolderError, match=r"not finite \(member runs/1, step .* of both\)"):
            predictor.predict(frame().head(3))


def test_the_command_line(
    runs: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.cli.test_usage import ziggurat as command

    status, out, errors = command(capsys, monkeypatch, "ensemble", *map(str, runs), "--out", "both")
    assert status == 0
    assert "outputs on validation" in errors
    assert "validation loss" in out
    assert f"both: {len(Ensemble.open('both').members)} of 3 checkpoints" in out
    status, out, _ = command(capsys, monkeypatch, "evaluate", "both", "--json")
    assert status == 0
    assert json.loads(out)["auc"] > 0.6
    status, out, _ = command(capsys, monkeypatch, "predict", "both", "log.csv", "-o", "scored.csv")
    assert (status, out) == (0, "scored.csv: 3,000 rows\n")
    status, _, errors = command(capsys, monkeypatch, "report", "both")
    assert status == 1
    assert "both: is an ensemble, not a run" in errors
    assert "`evaluate`, `predict`, `export`, `serve` and `verify` take ensembles" in errors
