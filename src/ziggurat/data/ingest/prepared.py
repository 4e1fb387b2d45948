"""What a reader serves from a prepared dataset: all its splits, memory-mapped."""

from __future__ import annotations

from pathlib import Path

from ziggurat.data.encoded.dataset import SPLITS, Dataset
from ziggurat.data.ingest.server import Served


def open_prepared(folder: Path) -> Served:
    """The dataset in ``folder``.

    Raises:
        DataError: no prepared dataset is there.
    """
    dataset = Dataset(folder)
    splits = {split: dataset.split(split) for split in SPLITS}
    return Served(dataset.fingerprint, dataset.schema, splits, dataset.manifest, small_files(folder))


def small_files(folder: Path) -> dict[str, Path]:
    """The files beside the rows that come with a dataset: fitted encoders and statistics, by name in its folder."""
    found = [path for pattern in ("encoders/*", "statistics.*") for path in sorted(folder.glob(pattern))]
    return {path.relative_to(folder).as_posix(): path for path in found if path.is_file()}
