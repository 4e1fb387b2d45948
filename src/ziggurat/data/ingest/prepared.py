"""What a reader serves from a prepared dataset: all its splits, memory-mapped."""

from __future__ import annotations

from pathlib import Path

from ziggurat.data.dataset import SPLITS, Dataset
from ziggurat.data.ingest.server import Served


def open_prepared(folder: Path) -> Served:
    """The dataset in ``folder``.

    Raises:
        DataError: no prepared dataset is there.
    """
    dataset = Dataset(folder)
    return Served(dataset.fingerprint, dataset.schema, {split: dataset.split(split) for split in SPLITS})
