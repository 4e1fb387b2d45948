"""An export with large tables: a small model is trained, and its tables are written anew with drawn rows."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file as save_arrays

from bench.serving.sdm.access import BAG, Skew, spread
from ziggurat.core.config import parse_config
from ziggurat.core.files import write_json
from ziggurat.exporting.export import export
from ziggurat.features.config import CategoricalFeature
from ziggurat.features.encoders.identity import IdentityConfig, IdentityEncoder
from ziggurat.features.transform import Transform
from ziggurat.serving.artefact.manifest import STATISTICS_FILE, TABLES, TRANSFORM, Manifest, StoredFile
from ziggurat.serving.artefact.row_codec import encode
from ziggurat.training import api
from ziggurat.training.experiment import Experiment

Ints = npt.NDArray[np.int64]
DIM = 64
_DRAWS, _DRAWS_A_ROW, _AT_ONCE = 400_000_000, 20, 4_000_000
"""Look-ups of the training data that the statistics of a table count, altogether and a row at most; drawn at once."""
_TRAINED = 2_000


def make(folder: Path, rows: dict[str, int], skew: Skew, seed: int = 0) -> Path:
    """Makes an export whose tables have some numbers of rows; returns its folder."""
    random = np.random.default_rng(seed)
    small = _trained(folder)
    manifest = Manifest.read(small)
    tables = tuple(replace(entry, rows=rows[entry.name]) for entry in manifest.tables)
    _resize(small / TRANSFORM, rows)
    counts: dict[str, Ints] = {}
    for entry in tables:
        layout = entry.layout(manifest.precision)
        with (small / TABLES / entry.file).open("wb") as file:
            chunk = layout.per_block * 4096
            for start in range(0, entry.rows, chunk):
                drawn = 0.05 * random.standard_normal((min(chunk, entry.rows - start), entry.dim), np.float32)
                layout.write(file, encode(drawn, manifest.precision, entry.name))
        counts[entry.name] = np.zeros(entry.rows, np.int64)
        draws = min(_DRAWS, _DRAWS_A_ROW * entry.rows)
        for start in range(0, draws, _AT_ONCE):
            ids = spread(skew.ranks(random, min(_AT_ONCE, draws - start), entry.rows), entry.rows)
            counts[entry.name] += np.bincount(ids, minlength=entry.rows)
    save_arrays(counts, small / STATISTICS_FILE)
    del counts
    files = {name: StoredFile.of(small / name) for name in manifest.files}
    replace(manifest, tables=tables, files=files).write(small)
    return small


def _resize(folder: Path, rows: dict[str, int]) -> None:
    """Writes a transform anew whose identity encoders know more values."""
    old = Transform.load(folder)
    features = [
        each.model_copy(update={"encoder": IdentityConfig(rows=rows[each.name])})
        if isinstance(each, CategoricalFeature)
        else each
        for each in old.features
    ]
    encoders = {name: IdentityEncoder(count) for name, count in rows.items()}
    shutil.rmtree(folder)
    folder.mkdir()
    Transform(features, old.targets, old.chains, encoders, old.labels).save(folder)


def _trained(folder: Path) -> Path:
    """Trains a small model: a user with a bag of items, and an item."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    bags = random.integers(0, 100, (_TRAINED, BAG)).tolist()
    columns: dict[str, Any] = {
        "user": random.integers(0, 100, _TRAINED),
        "item": random.integers(0, 100, _TRAINED),
        "liked": bags,
        "click": random.integers(0, 2, _TRAINED),
    }
    pq.write_table(pa.table(columns), folder / "log.parquet")
    identity = {"name": "identity", "rows": 100}
    values: dict[str, Any] = {
        "name": "sdm",
        "data": {
            "folder": str(folder),
            "source": {"name": "parquet", "files": ["log.parquet"]},
            "split": {"name": "random", "validation": 0.2, "test": 0.2},
            "labels": [{"name": "click"}],
        },
        "features": [
            {"name": "user", "kind": "categorical", "type": "integer", "encoder": identity},
            {"name": "item", "kind": "categorical", "type": "integer", "encoder": identity},
            {"name": "liked", "kind": "bag", "type": "integer", "table": "item"},
        ],
        "embeddings": {"dim": DIM},
        "model": {"name": "deepfm"},
        "training": {"batch_size": 256, "epochs": 1, "seed": 0},
    }
    write_json(folder / "exp.yaml", values)
    run = api.train(parse_config(Experiment, values), str(folder / "run"), prepared=str(folder / "prepared")).run
    export(run, folder / "export", precision="int8", prepared=folder / "prepared", item_columns=["item"])
    return folder / "export"
