from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.s3_fixtures import clear_clients, faulty_server, proxy, s3, s3_server
from ziggurat.core.schema import GROUP_COLUMN, WEIGHT_COLUMN, Schema, count_column, label_column
from ziggurat.data.encoded.dataset import Dataset, DatasetWriter

__all__ = ["clear_clients", "faulty_server", "proxy", "s3", "s3_server"]

SCHEMA = Schema(
    dense=("age",),
    categorical=("user", "item"),
    bags=("tags",),
    sequences=("history",),
    tables={"user": "user", "item": "item", "tags": "tags", "history": "item"},
    rows={"user": 1000, "item": 500, "tags": 20},
    labels=("click",),
    has_weight=True,
    has_group=True,
)


def encoded_rows(count: int, start: int = 0) -> pa.RecordBatch:
    """Returns rows whose values are functions of the row number, which is also the group."""
    row = np.arange(start, start + count)
    tags = [[int(i + j) % 20 for j in range(i % 4)] for i in row]
    history = [[int(i * j) % 500 for j in range(i % 3)] for i in row]
    return pa.RecordBatch.from_pydict(
        {
            "age": pa.array(row / 2, pa.float32()),
            "user": pa.array(row % 1000, pa.int32()),
            "item": pa.array(row % 500, pa.int32()),
            "tags": pa.array(tags, pa.list_(pa.int32())),
            "history": pa.array(history, pa.list_(pa.int32())),
            label_column("click"): pa.array(row % 2, pa.float32()),
            count_column("click"): pa.array(row % 5, pa.float32()),
            WEIGHT_COLUMN: pa.array(1 + row % 3, pa.float32()),
            GROUP_COLUMN: pa.array(row, pa.int64()),
        }
    )


@pytest.fixture
def make_dataset(tmp_path: Path) -> Callable[..., Dataset]:
    def make(train: int = 1000, test: int = 100, block_rows: int = 64, parts: int = 7) -> Dataset:
        folder = tmp_path / f"dataset-{train}-{test}-{block_rows}-{parts}"
        writer = DatasetWriter(folder, SCHEMA, block_rows)
        for bounds in np.array_split(np.arange(train), parts):
            if len(bounds):
                writer.append("train", encoded_rows(len(bounds), int(bounds[0])))
        writer.append("test", encoded_rows(test))
        writer.finish("made-by-a-test", {})
        return Dataset(folder)

    return make
