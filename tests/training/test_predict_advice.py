"""Errors of prediction advise what those who predict can do: they have files, and no config."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.conftest import MakeExperiment
from ziggurat.core.errors import DataError
from ziggurat.data.readers.advice import form_of_files, hint_for_prediction
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.parquet.reader import ParquetSource
from ziggurat.training import api

FORM = "CSV, delimiter ',', encoding utf-8, with a header"


@pytest.mark.parametrize(
    ("hint", "reworded"),
    [
        ('set `delimiter: ";"` on the source', f"write the file as the run reads it: {FORM}"),
        ("set `encoding: utf-16` on the source", f"write the file as the run reads it: {FORM}"),
        ("set `header: false` and name the columns under `columns`", f"write the file as the run reads it: {FORM}"),
        ("remove it from `files`, or write it anew", "leave the file out, or write it anew"),
        (
            "write whole numbers, or declare the column `type: text`; or predict with --on-bad-row quarantine to go on",
            "write whole numbers; or predict with --on-bad-row quarantine to go on",
        ),
        (
            "declare the column as text, or add the value to null_values; or predict with --on-bad-row quarantine",
            "correct the row: write the value as the training files have it; or predict with --on-bad-row quarantine",
        ),
        (
            "write it like 2024-05-01 or 2024-05-01T12:30:00Z; where times are numbers, set `time_format: number`",
            "write it like 2024-05-01 or 2024-05-01T12:30:00Z",
        ),
        (
            "leave the cell empty where the value is missing, or set `nan_is_missing: true` on the source",
            "leave the cell empty where the value is missing",
        ),
        ("did you mean 'age'?", "did you mean 'age'?"),
        ("", ""),
    ],
)
def test_what_only_a_config_can_do_is_left_out(hint: str, reworded: str) -> None:
    assert hint_for_prediction(hint, lambda: FORM) == reworded


def test_rows_in_memory_have_no_form() -> None:
    assert hint_for_prediction("declare the column `type: text`") == (
        "correct the row: write the value as the training files have it"
    )


def test_the_form_is_that_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_text("a\n1\n")
    (tmp_path / "log.jsonl").write_text("{}\n")
    source = CsvSource(files=["log.csv"], delimiter=";", encoding="cp1252", header=False, columns=["a", "b"])
    assert form_of_files(source, ["absent.csv"]) == (
        "CSV, delimiter ';', encoding cp1252, without a header, the columns a, b, no line ends within quotes"
    )
    assert form_of_files(source, [str(tmp_path / "log.tsv")]) == (
        "CSV, delimiter '\\t', encoding utf-8, with a header, no line ends within quotes"
    )
    assert form_of_files(source, [str(tmp_path / "log.jsonl")]) == "JSON lines, encoding utf-8"
    assert form_of_files(ParquetSource(files=["log.parquet"]), ["absent.parquet"]) == "parquet"


def test_files_in_another_form_than_those_of_the_training(make_experiment: MakeExperiment) -> None:
    run = api.train(make_experiment(training__epochs=1), "run").run.folder
    log = Path("log.csv").read_text()
    head, first, *rest = log.splitlines()
    files = {
        "semicolons.csv": log.replace(",", ";").encode(),
        "western.csv": (head.replace("note", "n\xf6te") + "\n" + first + "\n").encode("cp1252"),
        "wide.csv": log.encode("utf-16"),
        "unnamed.csv": "\n".join([first, *rest]).encode(),
    }
    for name, content in files.items():
        Path(name).write_bytes(content)
        with pytest.raises(DataError) as told:
            api.predict_files(run, [name], "out.csv")
        assert told.value.hint.startswith(f"write the file as the run reads it: {FORM}"), name
        assert "`" not in told.value.hint
        assert "the source" not in told.value.hint
    Path("broken.csv").write_text(f"{head}\n{first}\n{first.replace(first.split(',')[1], 'x', 1)}\n")
    with pytest.raises(DataError) as told:
        api.predict_files(run, ["broken.csv"], "out.csv")
    assert "or predict with --on-bad-row quarantine to set such rows aside and go on" in told.value.hint
    assert "null_values" not in told.value.hint
    assert "`" not in told.value.hint
