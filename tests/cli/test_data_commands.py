"""``ziggurat generate`` and ``ziggurat datasets`` through the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from ziggurat.cli.main import app
from ziggurat.core.errors import ConfigError
from ziggurat.data.public.catalogue import RECORD, find_dataset


def run(*arguments: str | Path) -> str:
    result = CliRunner(env={"COLUMNS": "250"}).invoke(
        app, [str(argument) for argument in arguments], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("name", ["log.csv", "log.tsv", "log.parquet", "log.jsonl"])
def test_the_suffix_decides_the_format(name: str, tmp_path: Path) -> None:
    out = tmp_path / name
    output = run("generate", out, "--rows", "300", "--seed", "3")
    frame = {
        ".csv": lambda: pl.read_csv(out),
        ".tsv": lambda: pl.read_csv(out, separator="\t"),
        ".parquet": lambda: pl.read_parquet(out),
        ".jsonl": lambda: pl.read_ndjson(out),
    }[out.suffix]()
    assert frame.height == 300
    assert frame.columns[:3] == ["timestamp", "click", "buy"]
    truth = json.loads((tmp_path / "log.truth.json").read_text())["labels"]["click"]
    assert f"AUC {truth['bayes_auc']:.4f}, log-loss {truth['bayes_log_loss']:.4f}" in output
    assert frame["click"].mean() == pytest.approx(truth["rate"], abs=1e-6)


def test_options_override_the_shape(tmp_path: Path) -> None:
    out = tmp_path / "log.txt"
    run("generate", out, "--shape", "criteo", "--rows", "5", "--delimiter", "|", "--header", "--format", "csv")
    lines = out.read_text().splitlines()
    assert len(lines) == 6
    assert lines[0].split("|")[:3] == ["label", "i1", "i2"]
    run("generate", tmp_path / "tabs.txt", "--rows", "2", "--delimiter", "\\t", "--no-header")
    assert len((tmp_path / "tabs.txt").read_text().splitlines()) == 2


def test_a_delimiter_of_two_characters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="delimiter"):
        run("generate", tmp_path / "log.csv", "--delimiter", "::")
    assert list(tmp_path.iterdir()) == []


def test_datasets_are_listed() -> None:
    output = run("datasets", "list")
    assert re.search(r"movielens-100k +100,000 +ratings of movies", output)
    assert "CC BY 4.0" in output


def test_an_existing_dataset_is_not_fetched_again(tmp_path: Path) -> None:
    """Creates the files of a finished download; fetching is tested in tests/data/test_catalogue.py."""
    entry = find_dataset("adult")
    (tmp_path / "adult.parquet").write_bytes(b"12345")
    record = {"name": "adult", "version": entry.version, "bytes": {"adult.parquet": 5}}
    (tmp_path / RECORD).write_text(json.dumps(record))
    output = run("datasets", "get", "adult", "--out", tmp_path)
    assert output.startswith(f"already there: {tmp_path / 'adult.parquet'}\n")
    assert "licence: CC BY 4.0" in output
    assert "please cite: B. Becker and R. Kohavi (1996)" in output
