"""Prediction that is interrupted, has no rows to predict, or gets files of other columns or another format."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.training.conftest import ROWS, MakeExperiment
from ziggurat.core.errors import DataError
from ziggurat.core.progress import Silent
from ziggurat.training import api

TEXTS = {"tags": pl.String, "history": pl.String}


@pytest.fixture
def run(make_experiment: MakeExperiment) -> Path:
    return api.train(make_experiment(training__epochs=1), "run").run.folder


@pytest.fixture
def parquet_run(make_experiment: MakeExperiment) -> Path:
    log = pl.read_csv("log.csv", schema_overrides=TEXTS)
    log.write_parquet("log.parquet")
    source = {"name": "parquet", "files": ["log.parquet"]}
    return api.train(make_experiment(data__source=source, training__epochs=1), "run").run.folder


class _Interrupted(Silent):
    """A progress that raises KeyboardInterrupt after the first block."""

    def advance(self, done: float, **figures: float | str) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_an_interruption_keeps_earlier_outputs(run: Path, suffix: str) -> None:
    out, quarantine = Path(f"out.{suffix}"), Path(f"out.{suffix}.quarantine.jsonl")
    Path("broken.csv").write_text(Path("log.csv").read_text() + "u1,not a number,3,1,2,1,0,1004,x\n")
    out.write_text("earlier output")
    quarantine.write_text("earlier quarantine")
    before = sorted(path.name for path in Path().iterdir())
    with pytest.raises(KeyboardInterrupt):
        api.predict_files(run, ["broken.csv"], out, progress=_Interrupted(), on_bad_row="quarantine")
    assert (out.read_text(), quarantine.read_text()) == ("earlier output", "earlier quarantine")
    assert sorted(path.name for path in Path().iterdir()) == before
    assert api.predict_files(run, ["broken.csv"], out, on_bad_row="quarantine").quarantined == 1
    assert json.loads(quarantine.read_text())["line"] == ROWS + 2
    assert api.predict_files(run, ["log.csv"], out).quarantined == 0
    assert not quarantine.exists()


def test_the_quarantine_shows_the_complete_row_in_every_format(make_experiment: MakeExperiment) -> None:
    identity = {"name": "item", "kind": "categorical", "type": "integer", "encoder": {"name": "identity", "rows": 60}}
    features = make_experiment().model_dump(mode="json")["features"]
    features[1:] = [identity, *features[2:4]]
    run = api.train(make_experiment(features=features, training__epochs=1), "run").run.folder
    bad = '"u1",60,3,1,2,1,0,1004,"a, note"'
    Path("in.csv").write_text(Path("log.csv").read_text().partition("\n")[0] + f"\n{bad}\nu1,59,3,1,2,1,0,1004,x\n")
    outcome = api.predict_files(run, ["in.csv"], Path("out.csv"), on_bad_row="quarantine")
    assert (outcome.rows, json.loads(outcome.quarantine.read_text())["text"]) == (1, bad)
    frame = pl.read_csv("in.csv", schema_overrides=TEXTS).with_columns(both=pl.struct("click", "buy"))
    frame.write_parquet("in.parquet")
    frame.write_ndjson("in.jsonl")
    for suffix in ("parquet", "jsonl"):
        outcome = api.predict_files(run, [f"in.{suffix}"], Path("out.parquet"), on_bad_row="quarantine")
        row = json.loads(outcome.quarantine.read_text())
        assert (row["column"], json.loads(row["text"])) == ("item", frame.to_dicts()[0]), suffix


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_a_file_without_rows_gives_an_empty_output(run: Path, suffix: str) -> None:
    head = Path("log.csv").read_text().partition("\n")[0]
    Path("empty.csv").write_text(f"{head}\n")
    out = Path(f"out.{suffix}")
    assert api.predict_files(run, ["empty.csv"], out).rows == 0
    if suffix == "jsonl":
        assert out.read_bytes() == b""
    else:
        read: dict[str, Callable[[], pl.DataFrame]] = {
            "csv": lambda: pl.read_csv(out),
            "tsv": lambda: pl.read_csv(out, separator="\t"),
            "parquet": lambda: pl.read_parquet(out),
        }
        assert read[suffix]().columns == [*head.split(","), "probability"]
        assert len(read[suffix]()) == 0
    assert api.predict_files(run, ["empty.csv", "log.csv", "empty.csv"], out).rows == ROWS


def test_a_parquet_file_without_rows_gives_an_empty_output(parquet_run: Path) -> None:
    pl.read_parquet("log.parquet").clear().write_parquet("empty.parquet")
    for out in (Path("out.csv"), Path("out.parquet")):
        assert api.predict_files(parquet_run, ["empty.parquet"], out).rows == 0
        frame = pl.read_csv(out) if out.suffix == ".csv" else pl.read_parquet(out)
        assert frame.columns == [*pl.read_parquet("log.parquet").columns, "probability"]
        assert api.predict_files(parquet_run, ["empty.parquet", "log.parquet"], out).rows == ROWS


def test_files_that_cannot_be_read_are_refused(run: Path) -> None:
    Path("nothing.csv").write_bytes(b"")
    Path("nothing.csv.gz").write_bytes(gzip.compress(b""))
    Path("lines.csv").write_bytes(b"\n\n")
    Path("other.csv").write_text("user;item;age;tags;history\n")
    Path("less.csv").write_text("user,item,age,tags\n")
    for name, problem in {
        "nothing.csv": r"nothing\.csv: the file is empty \(0 bytes\)",
        "nothing.csv.gz": r"nothing\.csv\.gz: the file is empty once decompressed",
        "lines.csv": r"lines\.csv: the file holds no rows, only empty lines",
        "other.csv": r"other\.csv: wrong delimiter\? received ','",
        "less.csv": r"less\.csv: no column 'history', which the run's features are made of",
    }.items():
        with pytest.raises(DataError, match=problem):
            api.predict_files(run, [name], Path("out.csv"))


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_all_missing_columns_are_named(run: Path, suffix: str) -> None:
    frame = pl.read_csv("log.csv", schema_overrides=TEXTS).rename({"item": "itme", "age": "x"}).drop("tags")
    name = f"less.{suffix}"
    {"csv": frame.write_csv, "parquet": frame.write_parquet, "jsonl": frame.write_ndjson}[suffix](name)
    with pytest.raises(DataError) as error:
        api.predict_files(run, [name], Path("out.csv"))
    assert str(error.value) == (
        f"{name}: no columns 'item', 'age', 'tags', which the run's features are made of; "
        "there are: user, itme, x, history, click, buy, when, note\n"
        "  hint: rename 'itme' to 'item'? Or add the missing columns, with empty cells where the values are unknown"
    )


def test_files_of_another_format_get_the_same_predictions(run: Path) -> None:
    log = pl.read_csv("log.csv", schema_overrides=TEXTS)
    log.write_parquet("log.parquet")
    log.write_ndjson("log.jsonl")
    log.write_csv("log.tsv", separator="\t")
    api.predict_files(run, ["log.csv"], Path("out.parquet"))
    expected = pl.read_parquet("out.parquet")["probability"].to_numpy()
    for name in ("log.parquet", "log.jsonl", "log.tsv"):
        assert api.predict_files(run, [name], Path("out.parquet")).rows == ROWS
        np.testing.assert_allclose(pl.read_parquet("out.parquet")["probability"].to_numpy(), expected, atol=1e-6)
    with pytest.raises(DataError, match=r"several formats: log.csv \(csv\) and log.parquet \(parquet\)"):
        api.predict_files(run, ["log.csv", "log.parquet"], Path("out.csv"))


def test_a_run_on_parquet_predicts_csv_and_tsv(parquet_run: Path) -> None:
    pl.read_csv("log.csv", schema_overrides=TEXTS).write_csv("log.tsv", separator="\t")
    api.predict_files(parquet_run, ["log.parquet"], Path("out.parquet"))
    expected = pl.read_parquet("out.parquet")["probability"].to_numpy()
    for name in ("log.csv", "log.tsv"):
        assert api.predict_files(parquet_run, [name], Path("out.parquet")).rows == ROWS
        np.testing.assert_allclose(pl.read_parquet("out.parquet")["probability"].to_numpy(), expected, atol=1e-6)


def test_an_output_that_is_a_folder_is_refused_before_anything_is_read(run: Path) -> None:
    Path("out.csv").mkdir()
    with pytest.raises(DataError, match=r"out\.csv: is a folder\n  hint: name a file"):
        api.predict_files(run, ["log.csv"], Path("out.csv"))
    assert api.predict_files(run, ["log.csv"], Path("new/folder/out.csv")).rows == ROWS


def test_the_hint_for_a_bad_row_in_memory_names_no_config_key(run: Path) -> None:
    rows = {"user": ["u"], "item": ["x"], "age": [1.0], "tags": [[1]], "history": [[1]]}
    with pytest.raises(DataError, match=r"column 'item'.*'x'") as error:
        api.predict(run, rows)
    assert "on_bad_row" not in str(error.value)
