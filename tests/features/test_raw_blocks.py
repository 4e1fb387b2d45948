"""Blocks made from raw logs on demand equal those of the prepared dataset, for every format, split and bad row."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from feature_kit import Experiment, experiment, write_csv
from numpy.lib import format as npy
from test_prepare import FEATURES, log

from ziggurat.core.errors import DataError
from ziggurat.core.progress import Silent
from ziggurat.core.untrusted import Damage
from ziggurat.data.encoded.dataset import SPLITS, Dataset
from ziggurat.features import raw_index
from ziggurat.features.preparation.prepare import ENCODERS, prepare
from ziggurat.features.raw_blocks import RawDataset, open_raw
from ziggurat.features.raw_index import RawIndex, index_raw

Columns = dict[str, list[Any]]
RANGE_BYTES = 3000


def to_csv(path: Path, columns: Columns) -> None:
    write_csv(path.with_suffix(".csv"), columns)


def to_gzip(path: Path, columns: Columns) -> None:
    write_csv(path.with_suffix(".csv"), columns)
    path.with_suffix(".csv.gz").write_bytes(gzip.compress(path.with_suffix(".csv").read_bytes()))
    path.with_suffix(".csv").unlink()


def to_jsonl(path: Path, columns: Columns) -> None:
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    path.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def to_parquet(path: Path, columns: Columns) -> None:
    pq.write_table(pa.table(columns), path.with_suffix(".parquet"), row_group_size=170)


FORMATS: dict[str, tuple[Callable[[Path, Columns], None], dict[str, Any]]] = {
    "csv": (to_csv, {"name": "csv", "files": ["*.csv"]}),
    "gzip": (to_gzip, {"name": "csv", "files": ["*.csv.gz"]}),
    "jsonl": (to_jsonl, {"name": "jsonl", "files": ["*.jsonl"]}),
    "parquet": (to_parquet, {"name": "parquet", "files": ["*.parquet"]}),
}


def write_logs(folder: Path, form: str = "csv") -> dict[str, Any]:
    """Writes two files and returns the config of their source."""
    write, source = FORMATS[form]
    columns = log(900)
    write(folder / "a", {name: cells[:500] for name, cells in columns.items()})
    write(folder / "b", {name: cells[500:] for name, cells in columns.items()})
    return source


MORE: list[dict[str, Any]] = [
    {"name": "city_rate", "column": "city", "kind": "encoded", "encoding": {"name": "target", "folds": 3}},
    {"name": "age_curve", "column": "age", "kind": "numeric", "transforms": [{"name": "spline", "knots": 3}]},
    {"name": "neither", "kind": "missing_together", "columns": ["age", "w"]},
    {"name": "pair", "kind": "crossed", "columns": ["user", "city"], "encoder": {"name": "hash", "rows": 30}},
]
"""Features of whose numbers some differ between training rows and others, and those of several columns."""


def parsed(folder: Path, source: dict[str, Any], **data: Any) -> Experiment:
    settings = {"weight": "w", "group": "user", "time": "t", "block_rows": 100, "source": source, **data}
    return experiment([*FEATURES, *MORE], folder=str(folder), **settings)


def prepared_and_raw(folder: Path, config: Experiment) -> tuple[Dataset, RawDataset]:
    """Returns the prepared dataset, and the dataset of the raw files with the same encoders."""
    dataset = Dataset(prepare(config.data, config.features, folder / "prepared"))
    index_raw(config.data, config.features, folder / "index", Silent(), RANGE_BYTES)
    return dataset, open_raw(config.data, config.features, dataset.folder / ENCODERS, folder / "index")


def check_equal(dataset: Dataset, raw: RawDataset) -> None:
    assert (raw.fingerprint, raw.schema) == (dataset.fingerprint, dataset.schema)
    for split in SPLITS:
        expected, blocks = dataset.split(split), raw.splits[split]
        assert (blocks.rows, tuple(blocks.sizes)) == (expected.rows, expected.sizes)
        for block in reversed(range(len(expected.sizes))):
            assert blocks.read(block).equals(expected.read(block))


@pytest.mark.parametrize("form", FORMATS)
def test_blocks_are_equal_for_every_format(tmp_path: Path, form: str) -> None:
    dataset, raw = prepared_and_raw(tmp_path, parsed(tmp_path, write_logs(tmp_path, form)))
    assert len(RawIndex.open(tmp_path / "index").ranges) > 5
    check_equal(dataset, raw)


@pytest.mark.parametrize(
    "split",
    [
        {"name": "random", "validation": 0.3, "test": 0.3, "seed": 5},
        {"name": "random", "key": "user"},
        {"name": "time", "validation": 0.2, "test": 0.1},
        {"name": "time_within_key", "key": "item"},
        {"name": "files", "test": ["b.csv"], "validation": 0.1},
        {"name": "files", "validation": ["b.csv"], "test": ["c.csv"]},
    ],
    ids=lambda split: "-".join(str(each) for each in split.values()),
)
def test_blocks_are_equal_for_every_split(tmp_path: Path, split: dict[str, Any]) -> None:
    source = write_logs(tmp_path)
    if split["name"] == "files":
        source = {"name": "csv", "files": ["a.csv"]}
        write_csv(tmp_path / "c.csv", log(120, seed=3))
    check_equal(*prepared_and_raw(tmp_path, parsed(tmp_path, source, split=split)))


def spoil(path: Path, every: int) -> int:
    """Makes the first cell of some rows unreadable, and the label of others; returns the number of bad rows."""
    lines = path.read_text().splitlines()
    for row in range(5, len(lines), every):
        cells = lines[row].split(",")
        cells[0 if row % 2 else 6] = "x"
        lines[row] = ",".join(cells)
    path.write_text("\n".join(lines) + "\n")
    return len(range(5, len(lines), every))


def test_bad_rows_are_quarantined_once(tmp_path: Path) -> None:
    source = write_logs(tmp_path)
    spoilt = spoil(tmp_path / "a.csv", 37) + spoil(tmp_path / "b.csv", 11)
    dataset, raw = prepared_and_raw(tmp_path, parsed(tmp_path, source, on_bad_row="quarantine"))
    check_equal(dataset, raw)
    quarantined = (tmp_path / "index" / "quarantine.jsonl").read_text()
    assert quarantined == (dataset.folder / "quarantine.jsonl").read_text()
    assert quarantined.count("\n") == spoilt
    assert json.loads((tmp_path / "index" / "index.json").read_text())["quarantined"]["rows"] == spoilt


def test_a_bad_row_stops_indexing_by_default(tmp_path: Path) -> None:
    source = write_logs(tmp_path)
    spoil(tmp_path / "b.csv", 300)
    config = parsed(tmp_path, source)
    with pytest.raises(DataError, match=r"b\.csv, line 6, column 'user'"):
        index_raw(config.data, config.features, tmp_path / "index", Silent(), RANGE_BYTES)
    assert not (tmp_path / "index").exists()


def test_an_index_is_made_again_only_for_changed_files(tmp_path: Path) -> None:
    config = parsed(tmp_path, write_logs(tmp_path))
    _, raw = prepared_and_raw(tmp_path, config)
    before = (tmp_path / "index" / "pieces.npy").stat().st_mtime_ns
    index_raw(config.data, config.features, tmp_path / "index", Silent(), RANGE_BYTES)
    assert (tmp_path / "index" / "pieces.npy").stat().st_mtime_ns == before
    write_csv(tmp_path / "c.csv", log(120, seed=3))
    with pytest.raises(DataError, match="the raw files or the config have changed since they were indexed"):
        open_raw(config.data, config.features, tmp_path / "prepared" / ENCODERS, tmp_path / "index")
    index_raw(config.data, config.features, tmp_path / "index", Silent(), RANGE_BYTES)
    grown = open_raw(config.data, config.features, tmp_path / "prepared" / ENCODERS, tmp_path / "index")
    rows = [sum(each.splits[split].rows for split in SPLITS) for each in (raw, grown)]
    assert rows == [900, 1020]


def test_a_changed_file_is_named_in_the_error(tmp_path: Path) -> None:
    _, raw = prepared_and_raw(tmp_path, parsed(tmp_path, write_logs(tmp_path)))
    with (tmp_path / "a.csv").open("a") as file:
        file.write("\n")
    with pytest.raises(DataError, match=r"a\.csv: changed while it was being read"):
        raw.splits["train"].read(0)


@pytest.mark.parametrize(
    ("name", "harm", "expected"),
    [
        ("index.json", lambda path: path.write_text("{}"), "has no checksum"),
        ("index.json", lambda path: path.write_text(path.read_text().replace("quarantined", "others")), "is damaged"),
        ("index.json", os.unlink, "is missing"),
        ("splits.npy", lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\7"), "is damaged"),
        ("splits.npy", lambda path: os.truncate(path, 10**12), "1,000,000,000,000 bytes"),
        ("pieces.npy", lambda path: (path.unlink(), os.mkfifo(path)), "is a named pipe"),
        ("pieces.npy", lambda path: (path.unlink(), path.symlink_to("/dev/zero")), "is a symbolic link"),
    ],
)
def test_a_damaged_index_is_named(tmp_path: Path, name: str, harm: Callable[[Path], Any], expected: str) -> None:
    config = parsed(tmp_path, write_logs(tmp_path))
    index_raw(config.data, config.features, tmp_path / "index", Silent(), RANGE_BYTES)
    harm(tmp_path / "index" / name)
    with pytest.raises(DataError, match=rf"index/{name}: .*{expected}") as told:
        RawIndex.open(tmp_path / "index")
    assert "delete" in told.value.hint


@pytest.mark.parametrize("shape", [(10**12,), (3, 10**9), ()])
def test_an_array_that_declares_more_than_it_has_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "splits.npy"
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        file.write(bytes(100))
    with pytest.raises(DataError, match=r"splits\.npy: is "):
        raw_index._numbers(path, np.uint8, (None,), Damage(DataError, "delete it"))
