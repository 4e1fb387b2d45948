"""A small run and its dataset, what reading them gives, and ways to damage their files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.training.conftest import config_values, write_log
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.errors import ZigguratError
from ziggurat.data.encoded.dataset import SPLITS, Dataset
from ziggurat.features.preparation.prepare import ENCODERS
from ziggurat.features.transform import Transform
from ziggurat.report.baselines.store import BASELINES_FILE, BaselineStore, read_baselines
from ziggurat.report.inputs import ComparisonRow
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.placement.plan_resolution import read_plan, read_ranks
from ziggurat.training.run_folder.metrics_log import read_metrics_log, record_faults
from ziggurat.training.run_folder.run import open_run
from ziggurat.training.warm_start.load import read_warm_start

ROWS = 600
SKIPPED = ("lock", "tensorboard", "checkpoints", "report.html")
"""What damage to a run does not change, and checkpoints, which have tests of their own."""


def experiment(folder: Path, **changes: Any) -> Experiment:
    values = config_values(folder)
    values["data"] |= {"block_rows": 64}
    for key, value in {"training.max_steps": 6, "training.log_every": 2, **changes}.items():
        set_by_path(values, key, value)
    return parse_config(Experiment, values)


def make_run(folder: Path, seed: int) -> None:
    """Prepares ``folder/prepared`` and trains ``folder/old`` and, from its weights, ``folder/run``."""
    folder.mkdir(parents=True)
    write_log(folder / "log.csv", ROWS, seed)
    prepared = folder / "prepared"
    api.train(experiment(folder, **{"training.max_steps": 2}), folder / "old", prepared=prepared)
    run = api.train(
        experiment(folder, **{"training.warm_start": {"run": str(folder / "old")}}), folder / "run", prepared=prepared
    ).run
    store = BaselineStore(folder / "run" / BASELINES_FILE, run.files.run_id)
    store.add("key", ComparisonRow("click", "LightGBM", False, {"auc": 0.5 + seed / 100}), ["a note"])


def files_of(folder: Path) -> list[Path]:
    """Returns the files that decide results, relative to ``folder``."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if path.parts[0] not in SKIPPED)


def used_dataset(folder: Path) -> dict[str, Any]:
    """Returns all that is read from a dataset."""
    dataset = Dataset(folder)
    transform = Transform.load(folder / ENCODERS, dataset.checksum(ENCODERS))
    statistics = dataset.statistics()
    return {
        "manifest": dataset.manifest,
        "states": {table: _plain(encoder.to_state()) for table, encoder in transform.encoders.items()},
        "chains": transform.chains,
        "features": transform.features,
        "accesses": {name: table.accesses.tolist() for name, table in statistics.tables.items()},
        "figures": repr((statistics.rows, statistics.label_rates, statistics.features)),
        "blocks": [
            dataset.split(split).read(block).to_pydict()
            for split in SPLITS
            for block in range(len(dataset.split(split).blocks))
        ],
    }


def used_run(folder: Path) -> dict[str, Any]:
    """Returns all that is read from a run, except from its checkpoints."""
    run = open_run(folder)
    records = read_metrics_log(run.metrics_path, run.files)
    missing = record_faults(records, run.written_records)
    if missing is not None:
        raise IncompleteError(f"{run.metrics_path}: {missing}", "restore it")
    transform = run.transform()
    ranks = read_ranks(run.files)
    return {
        "config": run.experiment,
        "owner": run.owner.id,
        "plan": read_plan(run.files),
        "raw plan": run.plan,
        "ranks": ranks and {name: each.tolist() for name, each in ranks.items()},
        "results": repr(run.results),
        "pointer": run.pointer(),
        "states": {table: _plain(encoder.to_state()) for table, encoder in transform.encoders.items()},
        "chains": transform.chains,
        "warm start": read_warm_start(run),
        "baselines": read_baselines(folder / BASELINES_FILE, run.files.run_id),
        "records": records,
    }


class IncompleteError(ZigguratError):
    """Records of ``metrics.jsonl`` are missing, which a report says in a note."""


def damages(size: int, rng: np.random.Generator) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Yields ways to damage a file of this size, with names for messages."""
    for byte in sorted({0, size - 1, *rng.integers(0, size, 5).tolist()}):
        bit = int(rng.integers(0, 8))
        yield f"bit {bit} of byte {byte}", lambda path, byte=byte, bit=bit: flip(path, byte, bit)
    for first in (0, size // 2, max(0, size - 16)):
        yield f"zeros from {first}", lambda path, first=first: zero(path, first, min(4096, size // 3 + 1))
    for length in (0, size // 2, size - 1):
        yield f"cut to {length}", lambda path, length=length: os.truncate(path, length)
    yield "deleted", Path.unlink
    yield "a pipe", _pipe
    yield "a link", _link


def flip(path: Path, byte: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)


def zero(path: Path, first: int, length: int) -> None:
    data = bytearray(path.read_bytes())
    stop = min(len(data), first + length)
    data[first:stop] = bytes(stop - first)
    path.write_bytes(data)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def restore(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    shutil.copy2(source, target)


def _plain(state: tuple[dict[str, Any], dict[str, Any]]) -> Any:
    figures, arrays = state
    return figures, {name: each.tolist() for name, each in arrays.items()}
