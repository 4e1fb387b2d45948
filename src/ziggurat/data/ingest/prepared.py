"""Opens a prepared dataset for serving: all its splits, memory-mapped."""

from __future__ import annotations

from pathlib import Path

from ziggurat.data.encoded.dataset import SPLITS, Dataset
from ziggurat.data.ingest.server import ServedDataset


def open_prepared(folder: Path) -> ServedDataset:
    """Opens the dataset in ``folder``.

    Raises:
        DataError: ``folder`` holds no prepared dataset.
    """
    dataset = Dataset(folder)
    splits = {split: dataset.split(split) for split in SPLITS}
    return ServedDataset(dataset.fingerprint, dataset.schema, splits, dataset.manifest, small_files(folder))


def small_files(folder: Path) -> dict[str, Path]:
    """Returns a dataset's fitted encoders and statistics: file name relative to its folder -> path."""
    found = [path for pattern in ("encoders/*", "statistics.*") for path in sorted(folder.glob(pattern))]
    return {path.relative_to(folder).as_posix(): path for path in found if path.is_file()}
