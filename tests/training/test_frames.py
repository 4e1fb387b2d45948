"""Rows in memory: the same ids, splits and results as from a Parquet file of the same rows."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ziggurat
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.data.encoded.manifest import SPLITS
from ziggurat.data.readers.frame.table import frame_table

ROWS = 600


def table() -> pa.Table:
    rng = np.random.default_rng(1)
    users = rng.integers(0, 40, ROWS)
    return pa.table(
        {
            "user": users,
            "city": pa.array([f"city {u % 7}" for u in users]).dictionary_encode(),
            "geo": [{"lat": float(u) / 3, "tags": ["a", "b"][: u % 3]} for u in users],
            "amount": [None if u % 11 == 0 else float(u) / 2 for u in users],
            "emb": pa.array([[float(u) + 0.5, 0.25] for u in users], pa.list_(pa.float32(), 2)),
            "at": pa.array(range(0, ROWS * 10**6, 10**6), pa.timestamp("us")),
            "click": rng.integers(0, 2, ROWS),
        }
    )


class Stream:
    """Anything with the Arrow C stream interface."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._rows.__arrow_c_stream__(requested_schema)


def pandas_frame(rows: pa.Table) -> Any:
    pytest.importorskip("pandas", reason="pandas is not installed; ziggurat does not need it")
    return rows.to_pandas()


FRAMES = {
    "pyarrow": lambda rows: rows,
    "batch": lambda rows: rows.combine_chunks().to_batches()[0],
    "polars": pl.from_arrow,
    "lazy": lambda rows: pl.from_arrow(rows).lazy(),  # type: ignore[union-attr]
    "stream": Stream,
    "mapping": lambda rows: rows.to_pydict(),
    "pandas": pandas_frame,
}


def contents(dataset: ziggurat.Dataset) -> dict[str, list[bytes]]:
    """Returns the bytes of the blocks of each split."""
    splits = {name: dataset.split(name) for name in SPLITS}
    return {
        name: [split.read(block).serialize().to_pybytes() for block in range(len(split.sizes))]
        for name, split in splits.items()
    }


def from_parquet(folder: Path, experiment: ziggurat.Experiment) -> ziggurat.Experiment:
    """Returns an experiment that reads the same rows from a Parquet file."""
    pq.write_table(table(), folder / "frame")
    source = {"name": "parquet", "files": ["frame"]}
    values = experiment.model_dump(mode="json")
    values["data"] |= {"source": source, "folder": str(folder)}
    return ziggurat.Experiment.model_validate(values)


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("split", [{"name": "random", "seed": 3}, {"name": "time"}])
def test_a_frame_is_prepared_as_a_parquet_file_is(tmp_path: Path, kind: str, split: dict[str, Any]) -> None:
    frame = FRAMES[kind](table())
    drafted = ziggurat.init(frame, "click", out=tmp_path / "exp.yaml")
    assert "name: frame\n" in (tmp_path / "exp.yaml").read_text()
    assert {feature.source_column for feature in drafted.features} == {
        "user", "city", "geo.lat", "geo.tags", "amount", "emb",
    }  # fmt: skip
    values = drafted.model_dump(mode="json")
    values["data"] |= {"split": split, "time": "at"}
    if kind == "mapping":
        values["data"] |= {"time_format": "iso"}
    experiment = ziggurat.Experiment.model_validate(values)
    in_memory = ziggurat.prepare(experiment, frame, tmp_path / "memory")
    on_disk = ziggurat.prepare(from_parquet(tmp_path, experiment), None, tmp_path / "disk")
    assert sum(map(len, contents(in_memory).values())) > 2
    assert contents(in_memory) == contents(on_disk)
    for file in sorted((tmp_path / "disk" / "encoders").iterdir()):
        assert (tmp_path / "memory" / "encoders" / file.name).read_bytes() == file.read_bytes(), file.name
    again = ziggurat.prepare(experiment, frame, tmp_path / "memory")
    assert again.fingerprint == in_memory.fingerprint


def test_a_frame_trains_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pl.from_arrow(table())
    values = ziggurat.init(frame, "click").model_dump(mode="json")
    values["training"] |= {"epochs": 2, "batch_size": 64}
    experiment = ziggurat.Experiment.model_validate(values)
    run = ziggurat.train(experiment, frame).run
    assert run.folder == Path("runs/frame")
    other = ziggurat.train(from_parquet(tmp_path, experiment), tmp_path / "other").run
    expected = ziggurat.predict(other, table())
    assert np.array_equal(ziggurat.predict(run, frame), expected)
    assert np.ptp(expected) > 0
    figures = [each.folder.joinpath("results.json").read_text() for each in (run, other)]
    assert "log_loss" in figures[0]
    pq.write_table(table(), "new.parquet")
    assert ziggurat.predict_files(run, "new.parquet", "scored.parquet").rows == ROWS
    assert np.array_equal(pq.read_table("scored.parquet")["probability"].to_numpy(), expected[:, 0])
    Path("plain").write_text("x\n")
    with pytest.raises(DataError, match=r"plain: cannot tell its format, and the run was trained on rows in memory"):
        ziggurat.predict_files(run, "plain", "out.csv")
    outcome = ziggurat.train(experiment, frame)
    assert outcome.results is not None
    with pytest.raises(DataError, match="rows are in memory"):
        ziggurat.prepare(experiment)


def test_other_rows_are_another_dataset(tmp_path: Path) -> None:
    experiment = ziggurat.init(table(), "click")
    first = ziggurat.prepare(experiment, table(), tmp_path / "a").fingerprint
    changed = table().set_column(0, "user", pa.array(range(ROWS)))
    assert ziggurat.prepare(experiment, changed, tmp_path / "b").fingerprint != first


def test_what_is_no_frame_is_refused(tmp_path: Path) -> None:
    experiment = ziggurat.init(table(), "click")
    for rows, message in [
        (5, r"frame: received 5 \(int\)"),
        ({"a": [1, "x"]}, r"frame, column 'a': holds values of several types: int \(1\) and str \('x'\)"),
        ({"a": [1], "b": [1, 2]}, "frame: column 'a' has 1 values, column 'b' 2"),
        ({"a": 5}, r"frame, column 'a': received 5 \(int\)"),
        ([{"a": 1}, 5], r"frame, row 2: received 5 \(int\) in a list of dictionaries"),
        (pl.Series([1, 2]), r"frame: received shape: .* \(Series\)"),
        (pl.scan_csv(tmp_path / "none.csv"), "frame: no table can be made of this LazyFrame"),
        (table().slice(0, 0), "frame: holds no rows"),
        (pa.Table.from_arrays([pa.array([1])] * 2, ["x", "x"]), "frame: holds column 'x' more than once"),
        (table().drop_columns(["geo"]), "frame: no column 'geo"),
    ]:
        with pytest.raises(DataError, match=message):
            ziggurat.prepare(experiment, rows, tmp_path / "out")
    values = experiment.model_dump(mode="json")
    values["data"]["split"] = {"name": "files", "validation": 0.1, "test": ["x"]}
    with pytest.raises(ConfigError, match="files decide it, but the rows are in memory"):
        ziggurat.prepare(ziggurat.Experiment.model_validate(values), table(), tmp_path / "out")
    with pytest.raises(ConfigError, match="cannot be prepared on a cluster"):
        ziggurat.prepare(experiment, table(), tmp_path / "out", ray="local")
    with pytest.raises(TypeError, match="the dataset's folder is given twice"):
        ziggurat.prepare(experiment, tmp_path / "out", tmp_path / "other")


BIG = [2**70 + k % 9 for k in range(ROWS)]
MIXED = [k if k % 2 else "a" for k in range(ROWS)]
ODD: dict[str, tuple[list[Any], str]] = {
    "mixed": (MIXED, "several types: str ('a') and int (1)"),
    "complex": ([k + 1j for k in range(ROWS)], "no column can be made: complex (1j)"),
    "nested": ([[1] if k % 2 else {"a": 1} for k in range(ROWS)], "several types: dict ({'a': 1}) and list ([1])"),
    "inside": ([[1, "a"]] * ROWS, "no column can be made: list ([1, 'a'])"),
    "objects": ([...] * ROWS, "no column can be made: ellipsis (Ellipsis)"),
    "deep": (
        [functools.reduce(lambda inner, _: [inner], range(100_000), [1])] * 2 + [None] * (ROWS - 2),
        "32 levels deep",
    ),
}


def columns() -> dict[str, Any]:
    return {name: table()[name].to_pylist() for name in ("user", "amount", "click")} | {"big": BIG}


def polars_frame(values: dict[str, Any]) -> pl.DataFrame:
    made = {name: pl.Series(each, dtype=pl.Object) if name in ODD else each for name, each in values.items()}
    wide = pl.Series(BIG, dtype=pl.Int128)
    return pl.DataFrame({**made, "big": wide, "lists": [[each] for each in wide]})


def odd_pandas(values: dict[str, Any]) -> Any:
    pd = pytest.importorskip("pandas", reason="pandas is not installed; ziggurat does not need it")
    sparse = pd.arrays.SparseArray([float(each or 0) for each in values["amount"]])
    return pd.DataFrame({**values, "sparse": sparse}, index=pd.Index(MIXED, name="index"))


ODD_FRAMES = {
    "mapping": lambda values: values,
    "records": lambda values: [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)],
    "polars": polars_frame,
    "pandas": odd_pandas,
}


@pytest.mark.parametrize("kind", ODD_FRAMES)
def test_an_odd_column_is_left_out_by_name(tmp_path: Path, kind: str) -> None:
    frame = ODD_FRAMES[kind](columns() | {name: values for name, (values, _) in ODD.items()})
    drafted = ziggurat.init(frame, "click", out=tmp_path / "exp.yaml")
    lines = (tmp_path / "exp.yaml").read_text().splitlines()
    for name, (_, problem) in ODD.items():
        (line,) = (each for each in lines if f"{{column: {name}}}" in each)
        assert "left out: holds" in line
        assert problem in line
    features = {feature.name: feature for feature in drafted.features}
    assert {"user", "amount", "big"} <= features.keys()
    assert features["big"].model_dump()["type"] == "text"
    dataset = ziggurat.prepare(drafted, frame, tmp_path / "prepared")
    assert dataset.schema.rows["big"] >= 9
    if kind == "pandas":
        assert "sparse" in features
        assert any("{column: index}" in line for line in lines)
    for name, (_, problem) in ODD.items():
        with pytest.raises(DataError, match=rf"frame, column '{name}': holds .*{re.escape(problem)}\n.* hint: "):
            ziggurat.init(frame, name)
        values = drafted.model_dump(mode="json")
        values["features"] += [{"name": name, "kind": "categorical"}]
        with pytest.raises(DataError, match=rf"'{name}': .*{re.escape(problem)}\n.*or leave out of the config what is"):
            ziggurat.prepare(ziggurat.Experiment.model_validate(values), frame, tmp_path / "other")


def test_a_reader_that_was_read_says_so(tmp_path: Path) -> None:
    reader = table().select(["user", "click"]).to_reader()
    experiment = ziggurat.init(reader, "click")
    with pytest.raises(DataError, match=r"it can be read once only\n.*reader.read_all\(\)"):
        ziggurat.prepare(experiment, reader, tmp_path / "out")


def test_a_large_frame_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"user": [k % 97 for k in range(400_000)], "click": [k % 2 for k in range(400_000)]})
    monkeypatch.setattr("ziggurat.data.inference.sample.sample_table.__defaults__", (2**20,))
    text = ziggurat.draft_config(rows, "click")
    assert "about 400,000 rows, a sample of" in text


def test_a_hugging_face_dataset_is_read_as_selected(tmp_path: Path) -> None:
    hub = pytest.importorskip("datasets", reason="needs Hugging Face datasets, which CI does not install")
    made = hub.Dataset.from_dict({"user": [f"u{k % 7}" for k in range(300)], "click": [k % 2 for k in range(300)]})
    chosen = made.select(range(250, 50, -1))
    assert frame_table(chosen).table.column("user").to_pylist() == [f"u{k % 7}" for k in range(250, 50, -1)]
    dataset = ziggurat.prepare(ziggurat.init(chosen, "click"), chosen, tmp_path / "prepared")
    assert sum(dataset.split(name).rows for name in SPLITS) == 200
    with pytest.raises(DataError, match="holds several datasets: train"):
        frame_table(hub.DatasetDict({"train": made}))
    with pytest.raises(DataError, match="not in memory"):
        frame_table(made.to_iterable_dataset())
