"""Small raw blocks and configs for tests of features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ziggurat.core.config import Config, parse_config
from ziggurat.core.schema import RawSchema
from ziggurat.data.readers.blocks import RawBlock, arrow_type
from ziggurat.features.config import DataConfig, FeatureConfig


class Experiment(Config):
    data: DataConfig
    features: tuple[FeatureConfig, ...]


def experiment(features: list[dict[str, Any]], **data: Any) -> Experiment:
    """Parses configs as from an experiment's YAML; by default it reads ``*.csv`` and has a 0/1 label ``click``."""
    settings = {"source": {"name": "csv", "files": ["*.csv"]}, "labels": [{"name": "click"}], **data}
    return parse_config(Experiment, {"data": settings, "features": features})


def block(schema: RawSchema, first_line: int = 2, **columns: list[Any]) -> RawBlock:
    """Returns a raw block of a file ``log.csv`` whose rows are on consecutive lines."""
    table = pa.table({name: pa.array(columns[name], arrow_type(schema[name])) for name in schema.names})
    return RawBlock(table, np.arange(first_line, first_line + table.num_rows), "log.csv")


def write_csv(path: Path, columns: dict[str, list[Any]]) -> None:
    """Writes a CSV file; None becomes an empty cell."""
    lines = [",".join(columns)]
    for row in zip(*columns.values(), strict=True):
        lines.append(",".join("" if cell is None else str(cell) for cell in row))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
