"""Folders called ``key=value``: their keys are columns of every format, in preparation and prediction."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from format_kit import FORMATS, source, write
from reader_kit import INTEGER, TEXT, many, read, required, schema

from ziggurat.cli.init import draft_config
from ziggurat.core.errors import DataError
from ziggurat.core.schema import ValueType
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.partitions import folder_values, shared_keys
from ziggurat.data.readers.source import open_source
from ziggurat.data.readers.source_files import resolve_files
from ziggurat.training.api import load_experiment, predict_files, prepare, train

DAY = 86_400.0


def write_folders(root: Path, name: str, folders: dict[str, list[int]]) -> None:
    """Writes a file of one column ``n`` into each folder."""
    for folder, numbers in folders.items():
        path = root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".csv":
            path.write_text("n\n" + "".join(f"{n}\n" for n in numbers))
        else:
            write(path, pa.table({"n": numbers}))


@pytest.mark.parametrize("name", [*FORMATS, "log.csv"])
def test_keys_are_columns_of_the_declared_types(tmp_path: Path, name: str) -> None:
    folders = {"a/dt=1970-01-02/k%20ey=x%2Fy": [1, 2], "a/dt=1970-01-03/k%20ey=__HIVE_DEFAULT_PARTITION__": [3]}
    write_folders(tmp_path, name, folders)
    (tmp_path / "a" / "_SUCCESS").touch()
    (tmp_path / "a" / "dt=1970-01-02" / ".part.crc").write_bytes(b"x")
    columns = schema(dt=ValueType.TIME, n=INTEGER, **{"k ey": TEXT})
    config = CsvSource(files=["a"]) if name == "log.csv" else source(name).model_copy(update={"files": ["a"]})
    reader = open_source(config, tmp_path, columns)
    assert read(reader).rows == [(DAY, 1, "x/y"), (DAY, 2, "x/y"), (2 * DAY, 3, None)]
    ranges = [row for each in reader.file_ranges() for row in read(reader, each.start, each.end).rows]
    assert ranges == read(reader).rows
    blocks = list(reader.blocks())
    assert reader.read_block(blocks[0].end, blocks[1].end).table.equals(blocks[1].table)
    by_pattern = config.model_copy(update={"files": ["a/*/*/*"]})
    assert read(open_source(by_pattern, tmp_path, columns)).rows == read(reader).rows


def test_a_column_of_the_files_takes_precedence(tmp_path: Path) -> None:
    write_folders(tmp_path, "log.parquet", {"n=7": [1, 2]})
    reader = open_source(source("log.parquet").model_copy(update={"files": ["."]}), tmp_path, schema(n=INTEGER))
    assert read(reader).rows == [(1,), (2,)]


def test_values_that_are_not_of_the_declared_type(tmp_path: Path) -> None:
    write_folders(tmp_path, "log.parquet", {"k=7": [1, 2], "k=x": [3, 4], "k=": [5]})
    config = source("log.parquet").model_copy(update={"files": ["."]})
    reading = read(open_source(config, tmp_path, schema(n=INTEGER, k=INTEGER)))
    assert reading.rows == [(5, None), (1, 7), (2, 7)]
    assert reading.kinds() == [(1, "k", "not an integer"), (2, "k", "not an integer")]
    assert reading.bad[1].text == '{"n": 4}'
    reading = read(open_source(config, tmp_path, schema(n=INTEGER, k=required(TEXT))))
    assert reading.rows == [(1, "7"), (2, "7"), (3, "x"), (4, "x")]
    assert reading.kinds() == [(1, "k", "required cell is empty")]
    assert read(open_source(config, tmp_path, schema(n=INTEGER, k=many(TEXT)))).rows[1] == (1, ["7"])
    with pytest.raises(DataError, match=r"every column is a key of the folders: k"):
        open_source(config, tmp_path, schema(k=INTEGER))


def test_a_key_that_some_files_lack_is_no_column(tmp_path: Path) -> None:
    write_folders(tmp_path, "log.parquet", {"k=7": [1], "plain": [2]})
    files = resolve_files(["."], tmp_path, [".parquet"])
    assert shared_keys(files) == []
    assert [folder_values(file) for file in files] == [{"k": "7"}, {}]
    config = source("log.parquet").model_copy(update={"files": ["."]})
    with pytest.raises(DataError, match=r"no column 'k'; the file holds: n"):
        open_source(config, tmp_path, schema(n=INTEGER, k=INTEGER))


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_init_prepare_and_predict_know_the_keys(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    for day in range(1, 9):
        for country in ("ch", 'd"e'):
            folder = tmp_path / "logs" / f"dt=2024-03-0{day}" / f"country={country}"
            folder.mkdir(parents=True)
            frame = pl.DataFrame({"user": rng.integers(0, 20, 60), "click": rng.integers(0, 2, 60)})
            {"parquet": frame.write_parquet, "jsonl": frame.write_ndjson, "csv": frame.write_csv}[suffix](
                folder / f"part.{suffix}"
            )
    text = draft_config("logs", "click")
    assert "time: dt\n  time_format: iso" in text
    assert "name: country, kind: categorical" in text
    assert "from the names of the folders country=…" in text
    assert "# 960 rows, all examined" in text
    (tmp_path / "exp.yaml").write_text(text)
    experiment = load_experiment("exp.yaml", ["training.epochs=1", "model={name: dnn}", "data.split={name: time}"])
    assert isinstance(experiment.data.time, str)
    dataset = prepare(experiment)
    assert dataset.split("test").rows == 120
    run = train(experiment, "run").run
    new = f'logs/dt=2024-03-05/country=d"e/part.{suffix}'
    lines = {name: predict_files(run, new, f"out{name}").rows for name in (".csv", ".tsv", ".jsonl", ".parquet")}
    assert set(lines.values()) == {60}
    names = ["user", "click", "dt", "country", "probability"]
    with open("out.csv", encoding="utf-8", newline="") as file:  # noqa: PTH123
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == names
    assert {(row["dt"], row["country"]) for row in rows} == {("2024-03-05", 'd"e')}
    objects = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert list(objects[0]) == names
    assert {each["country"] for each in objects} == {'d"e'}
    assert pl.read_parquet("out.parquet")["dt"].unique().to_list() == ["2024-03-05"]
    everything = predict_files(run, "logs", "all.csv")
    assert everything.rows == 960
