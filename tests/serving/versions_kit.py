"""A training whose checkpoints are put, one by one, where a server follows them."""

from __future__ import annotations

import atexit
import csv
import functools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.training.conftest import config_values, write_log
from ziggurat.checkpoint.reader import folder_of
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.data.readers.rows_in_memory import to_arrow
from ziggurat.data.readers.table_reader import read_table
from ziggurat.exporting.export import export
from ziggurat.serving.artefact.manifest import TABLES
from ziggurat.serving.artefact.row_codec import Precision
from ziggurat.serving.http.served_model import ServedModel, export_digest
from ziggurat.serving.model.scorer import Scorer
from ziggurat.serving.tables.lookup import Lookup
from ziggurat.serving.tables.mapped_rows import MappedRows
from ziggurat.serving.tables.plain_lookup import PlainLookup
from ziggurat.serving.tables.pooled_cache import PooledCache
from ziggurat.serving.tables.row_cache import RowBytesCache
from ziggurat.serving.tables.stores import DiskTable
from ziggurat.serving.versions.folder import VersionFolder
from ziggurat.serving.versions.opening import VersionOpener
from ziggurat.serving.versions.record import Pointer, VersionRecord
from ziggurat.serving.versions.updater import Following, Updater
from ziggurat.training import api
from ziggurat.training.experiment import Experiment

Predicted = np.ndarray[Any, Any]
STEPS = (3, 6, 9, 12, 15)
USERS = 3_000
"""Rows of a table of which a step changes few, so that checkpoints are deltas."""


@dataclass(frozen=True)
class Trained:
    """A run with a checkpoint every three steps, and the exports of those that were asked for."""

    root: Path
    rows: list[dict[str, Any]]
    made: dict[tuple[int, str], Path] = field(default_factory=dict)
    found: dict[tuple[int, str], Predicted] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        return self.root / "run"

    def export(self, step: int, precision: Precision = "fp32") -> Path:
        """Returns the export of a checkpoint."""
        if (step, precision) not in self.made:
            out = self.root / f"export-{step}-{precision}"
            export(self.run, out, prepared=self.root / "prepared", checkpoint=str(step), precision=precision)
            self.made[step, precision] = out
        return self.made[step, precision]

    def predicted(self, scorer: Scorer, count: int | None = None) -> Predicted:
        """Returns the predictions of the kit's rows, or of the first of them, with one thread as in a worker: another
        number of threads may change the last bits."""
        needed = scorer.transform.raw_schema(labelled=False)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return scorer.score(read_table(to_arrow(self.rows[:count], needed), needed)).predictions_BT
        finally:
            torch.set_num_threads(threads)

    def predicted_of(self, export: Path, count: int) -> Predicted:
        """Returns the predictions of the only label for the first rows."""
        return self.predicted(Scorer.open(export), count)[:, 0]

    def expected(self, step: int, precision: Precision = "fp32") -> Predicted:
        """Returns the predictions of the export of a checkpoint."""
        if (step, precision) not in self.found:
            self.found[step, precision] = self.predicted(Scorer.open(self.export(step, precision)))
        return self.found[step, precision]

    def put(self, step: int, place: Path) -> None:
        """Puts a checkpoint where it is followed; it appears complete."""
        place.mkdir(exist_ok=True)
        name = folder_of(step)
        shutil.copytree(self.run / "checkpoints" / name, place / f".{name}")
        (place / f".{name}").rename(place / name)


def until(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@functools.cache
def trained() -> Trained:
    """Trains the run, once a process."""
    root = Path(tempfile.mkdtemp(prefix="ziggurat-versions-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    write_log(root / "log.csv", rows=2_000)
    with (root / "log.csv").open(newline="") as file:
        log = list(csv.DictReader(file))
    with (root / "log.csv").open("w", newline="") as file:
        out = csv.DictWriter(file, list(log[0]))
        out.writeheader()
        out.writerows({**row, "user": f"u{number * 7919 % 1_000}"} for number, row in enumerate(log))
    values = config_values(root)
    changes = {
        "training.epochs": 1, "training.batch_size": 96, "training.save_every": STEPS[0], "training.keep": 100,
        "checkpoints": {"policy": "consecutive"},
        "features": [{**each, "encoder": {"name": "hash", "rows": USERS}} if each["name"] == "user" else each
                     for each in values["features"]],
    }  # fmt: skip
    for path, value in changes.items():
        set_by_path(values, path, value)
    api.train(parse_config(Experiment, values), str(root / "run"), prepared=str(root / "prepared"))
    return Trained(root, [_typed({**row, "user": f"u{number * 7919 % 1_000}"}) for number, row in enumerate(log[:40])])


def _typed(row: dict[str, str]) -> dict[str, Any]:
    lists = {name: [int(each) for each in row[name].split("|") if each] for name in ("tags", "history")}
    return {"user": row["user"], "item": int(row["item"]), "age": float(row["age"]) if row["age"] else None, **lists}


def versions_of(folder: Path, root: Path) -> VersionFolder:
    """Returns a new folder of versions of an export."""
    model = ServedModel.open(folder)
    found = VersionFolder.create(root, export_digest(folder), model.scorer.manifest, model.exported_at)
    atexit.register(found.forget_indexes, folder=True)
    return found


def following(place: Path, folder: VersionFolder, **options: Any) -> Following:
    return Following(str(place), folder.root, **options)


class Opener:
    """Opens versions one after another, as a worker does whose server chooses them."""

    def __init__(self, folder: VersionFolder, exported: Scorer) -> None:
        self._opener = VersionOpener(folder, exported)
        self._before, self._pointer = folder.record(0), Pointer(0, "following", 0.0)

    def open(self, record: VersionRecord) -> Scorer:
        self._pointer = self._pointer.after("following", 0.0, record, self._before)
        self._before = record
        return self._opener.open(record, self._pointer)


def on_disk(export: Path) -> Scorer:
    """Opens an export with all tables on disk, behind small caches of rows and of pooled rows."""
    scorer = Scorer.open(export)
    manifest, tables = scorer.manifest, dict[str, DiskTable]()
    for entry in manifest.tables:
        width = entry.layout(manifest.precision).width
        cache, pooled = RowBytesCache(20_000, width, entry.rows), PooledCache(20_000, entry.dim, 1, any_order=False)
        path = export / TABLES / entry.file
        tables[entry.name] = DiskTable(path, entry, manifest.precision, cache, pooled)
    return Scorer(export, manifest, scorer.transform, Lookup(manifest, tables), scorer.dense)


def uncompiled(export: Path) -> Scorer:
    """Opens an export without compiled kernels."""
    scorer = Scorer.open(export)
    manifest = scorer.manifest
    paths = {each.name: export / TABLES / each.file for each in manifest.tables}
    rows = {each.name: MappedRows(paths[each.name], each, manifest.precision) for each in manifest.tables}
    return Scorer(export, manifest, scorer.transform, PlainLookup(manifest, rows), scorer.dense)


WRITES = {"open", "os.rename", "os.remove", "os.chmod"}


def take_and_die(place: Path, root: Path, export: Path, at: int) -> None:
    """Takes a version, and is killed at its n-th operation on a file after it was started."""
    folder = VersionFolder(root, export_digest(export))
    updater, count = Updater(folder, export, following(place, folder)), 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event in WRITES and str(root) in str(arguments[0]):
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    updater.step()
