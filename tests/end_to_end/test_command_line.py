"""The commands of a first session on one CSV: generate, init, prepare, train, evaluate, predict, report."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from tests import commands


def ziggurat(*arguments: str, folder: Path) -> str:
    """Runs a command that must succeed; returns its stdout."""
    status, out, err = commands.ziggurat(*arguments, folder=folder)
    assert status == 0, err
    return out


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    ziggurat("generate", "shop.csv", "--rows", "12000", "--shape", "demo", "--seed", "7", folder=folder)
    (folder / "exp.yaml").write_text(ziggurat("init", "shop.csv", folder=folder))
    ziggurat("prepare", "exp.yaml", folder=folder)
    ziggurat("train", "exp.yaml", "--set", "training.epochs=2", folder=folder)
    return folder


def test_the_config_that_init_writes_trains_a_useful_model(trained: Path) -> None:
    figures = json.loads((trained / "runs" / "shop" / "results.json").read_text())["figures"]["test"]
    assert figures["click/auc"] > 0.53
    assert figures["click/ne"] < 1.0


def test_preparing_and_training_again_change_no_file(trained: Path) -> None:
    def times() -> dict[Path, int]:
        folders = (trained / "prepared", *(trained / "runs" / "shop" / "checkpoints").glob("step-*"))
        return {path: path.stat().st_mtime_ns for root in folders for path in root.rglob("*") if path.is_file()}

    before = times()
    ziggurat("prepare", "exp.yaml", folder=trained)
    ziggurat("train", "exp.yaml", "--set", "training.epochs=2", folder=trained)
    assert times() == before


def test_evaluate_prints_json(trained: Path) -> None:
    printed = json.loads(ziggurat("evaluate", "runs/shop", "--json", folder=trained))
    stored = json.loads((trained / "runs" / "shop" / "results.json").read_text())["figures"]["test"]
    assert {name: printed[name] for name in stored} == pytest.approx(stored, nan_ok=True)


def test_predict_keeps_rows_and_columns(trained: Path) -> None:
    ziggurat("predict", "runs/shop", "shop.csv", "-o", "scored.parquet", folder=trained)
    raw, scored = pl.read_csv(trained / "shop.csv"), pl.read_parquet(trained / "scored.parquet")
    assert len(raw) == len(scored)
    assert set(scored.columns) == {*raw.columns, "probability:click", "probability:buy"}
    assert scored["probability:click"].is_between(0, 1).all()


def test_the_report_is_one_self_contained_file(trained: Path) -> None:
    ziggurat("report", "runs/shop", folder=trained)
    page = (trained / "runs" / "shop" / "report.html").read_text()
    for part in ("LightGBM", "Logistic regression", "Calibration", "shop"):
        assert part in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


def test_schema_accepts_the_config_that_init_wrote(trained: Path) -> None:
    schema = json.loads(ziggurat("schema", folder=trained))
    assert schema["properties"].keys() >= {"name", "data", "features", "embeddings", "model", "optimizer", "training"}
    assert schema["additionalProperties"] is False
    assert "Rows per step" in schema["$defs"]["TrainingConfig"]["properties"]["batch_size"]["description"]
