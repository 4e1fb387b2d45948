"""The encoded dataset: rows are read as written, block by block; errors about damaged folders name them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tests.data.conftest import SCHEMA, encoded_rows
from ziggurat.core.errors import DataError
from ziggurat.data.encoded.dataset import FILE_BLOCKS, Dataset, DatasetWriter

MakeDataset = Callable[..., Dataset]


def test_rows_keep_their_order_however_they_are_divided(make_dataset: MakeDataset) -> None:
    whole, parts = make_dataset(parts=1).split("train"), make_dataset(parts=13).split("train")
    assert whole.blocks == parts.blocks
    assert [rows for _, _, rows in whole.blocks] == [64] * 15 + [40]
    for block in range(16):
        assert whole.read(block).equals(parts.read(block))
        assert whole.read(block)["@group"].to_pylist() == list(range(block * 64, min(block * 64 + 64, 1000)))


def test_files_are_bit_identical_however_rows_are_divided(make_dataset: MakeDataset) -> None:
    whole, parts = make_dataset(parts=1).folder, make_dataset(parts=13).folder
    assert (whole / "train" / "00000.arrow").read_bytes() == (parts / "train" / "00000.arrow").read_bytes()


def test_many_blocks_go_into_several_files(make_dataset: MakeDataset) -> None:
    dataset = make_dataset(train=8 * (FILE_BLOCKS + 1), block_rows=8)
    assert [len(file["blocks"]) for file in dataset.manifest["splits"]["train"]["files"]] == [FILE_BLOCKS, 1]
    assert dataset.split("train").read(FILE_BLOCKS)["@group"][0].as_py() == 8 * FILE_BLOCKS


def test_the_schema_survives_the_manifest(make_dataset: MakeDataset) -> None:
    assert make_dataset().schema == SCHEMA


def test_polars_can_open_the_files(make_dataset: MakeDataset) -> None:
    frame = pl.read_ipc(make_dataset().folder / "train" / "00000.arrow")
    assert frame["user"].to_list() == [i % 1000 for i in range(1000)]
    assert frame["tags"].to_list()[3] == [3, 4, 5]


def test_empty_splits_are_empty(make_dataset: MakeDataset) -> None:
    assert make_dataset().split("validation").rows == 0


def test_ids_of_huge_tables_are_int64(tmp_path: Path) -> None:
    from ziggurat.core.schema import Schema
    from ziggurat.data.encoded.dataset import arrow_schema

    schema = Schema(categorical=("a", "b"), tables={"a": "a", "b": "b"}, rows={"a": 2**31, "b": 2**31 - 1})
    assert [field.type for field in arrow_schema(schema)] == [pa.int64(), pa.int32()]


@pytest.mark.parametrize("block_rows", [7, 8, 64])
def test_bytes_do_not_depend_on_the_appended_sizes(tmp_path: Path, block_rows: int) -> None:
    rows, files = encoded_rows(200), list[bytes]()
    for name, sizes in {"at once": [200], "piecemeal": [1, 5, 60, 3, 31, 100]}.items():
        writer = DatasetWriter(tmp_path / name, SCHEMA, block_rows)
        for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
            writer.append("train", rows.slice(start, size))
        writer.close()
        files.append((tmp_path / name / "train" / "00000.arrow").read_bytes())
    assert files[0] == files[1]


def test_a_folder_without_manifest_is_rejected(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path, SCHEMA, 8)
    writer.append("train", encoded_rows(20))
    with pytest.raises(DataError, match=r"no prepared dataset[\s\S]*ziggurat prepare"):
        Dataset(tmp_path)


def test_another_format_version_is_rejected(make_dataset: MakeDataset) -> None:
    folder = make_dataset().folder
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format_version": 99}))
    with pytest.raises(DataError, match="dataset format 99, this ziggurat reads 2"):
        Dataset(folder)


def test_a_truncated_file_is_named(make_dataset: MakeDataset) -> None:
    dataset = make_dataset()
    path = dataset.folder / "train" / "00000.arrow"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"00000\.arrow: block 3 cannot be read"):
        dataset.split("train").read(3)
