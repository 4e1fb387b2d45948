"""Logs from the folder that ``--data`` names, which may not be redistributed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from ziggurat.core.errors import DataError

_HISTORY = 20


def frappe(folder: Path, data: Path | None) -> None:
    """The split of the public board; its files name the parts."""
    _copy(data, "frappe_x1", {name: name for name in ("train.parquet", "valid.parquet", "test.parquet")}, folder)


def criteo(folder: Path, data: Path | None) -> None:
    """The raw form of Criteo's display ads, with a header."""
    names = {"criteo_train.csv": "train.tsv", "criteo_dev.csv": "dev.tsv", "criteo_test.csv": "test.tsv"}
    _copy(data, "criteo_raw_sample", names, folder)


def amazon(name: str) -> Callable[[Path, Path | None], None]:
    """Returns a function that writes purchases with as many sampled negatives.

    The last item of each user tests, the one before it validates. Beside each purchase stands an item that the user
    never bought, drawn uniformly. A row holds the user, the item, and up to 20 items bought before.
    """

    def write(folder: Path, data: Path | None) -> None:
        source = _folder(data, "amazon_sequences") / f"{name}.txt"
        draw = np.random.default_rng(0)
        bought = [line.split() for line in source.read_text(encoding="ascii").splitlines()]
        every = np.unique([item for _, *items in bought for item in items])
        parts: dict[str, list[tuple[str, str, str, int]]] = {"train": [], "validation": [], "test": []}
        for user, *items in bought:
            own = set(items)
            for place, item in enumerate(items):
                part = {len(items) - 1: "test", len(items) - 2: "validation"}.get(place, "train")
                other = item
                while other in own:
                    other = str(every[draw.integers(len(every))])
                history = " ".join(items[max(0, place - _HISTORY) : place])
                parts[part] += [(user, item, history, 1), (user, other, history, 0)]
        for part, rows in parts.items():
            frame = pl.DataFrame(rows, ["user_id", "item_id", "last_items", "bought"], orient="row")
            frame.write_csv(folder / f"{part}.csv")

    return write


def _folder(data: Path | None, name: str) -> Path:
    assert data is not None
    if not (data / name).is_dir():
        raise DataError(f"{data}: has no folder {name}", "name the folder that holds it: --data FOLDER")
    return data / name


def _copy(data: Path | None, source: str, names: dict[str, str], folder: Path) -> None:
    for name, target in names.items():
        shutil.copyfile(_folder(data, source) / name, folder / target)
