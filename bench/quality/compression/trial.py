"""Prepares data with an encoder and trains on it."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ziggurat.core.config import parse_config
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.manifest import ENCODERS
from ziggurat.features.encoders.files import encoder_file_names
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.metrics_log import read_metrics_log
from ziggurat.training.run_folder.run import Run
from ziggurat.training.scaling.runs import examples_seen


def run(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Trains ``spec["experiment"]`` and counts the bytes of ``spec["tables"]``: name -> whether its map counts.

    Args:
        spec: experiment and tables.
        folder: where data and run lie until it ends.

    Returns:
        The figures of validation and test rows, the bytes of weights and maps, the seconds of both steps, and those
        of a row in steps of training alone; 0 if the journal has none.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="compressed-") as scratch:
        return _run(spec, Path(scratch))


def _run(spec: dict[str, Any], scratch: Path) -> dict[str, Any]:
    experiment = parse_config(Experiment, spec["experiment"])
    started = time.perf_counter()
    dataset = api.prepare(experiment, scratch / "data")
    prepared = time.perf_counter()
    outcome = api.train(experiment, scratch / "run", prepared=dataset.folder)
    trained = time.perf_counter()
    assert outcome.results is not None
    layout = experiment.layout(dataset.schema)
    sizes = {table.name: table.weight_bytes for table in layout.tables}
    maps = {name: _map_bytes(dataset, name) for name, counted in spec["tables"].items() if counted}
    label = experiment.data.labels[0].name
    figures = outcome.results["figures"]
    return {
        **{split: _of(figures[split], label) for split in ("validation", "test")},
        "weights": sum(sizes[name] for name in spec["tables"]),
        "maps": sum(maps.values()),
        "prepare_s": prepared - started,
        "train_s": trained - prepared,
        "row_s": _row_s(outcome.run, dataset.statistics().rows["train"], experiment.training.batch_size),
        "steps": outcome.step,
    }


def _row_s(run: Run, rows: int, batch_size: int) -> float:
    """Returns the seconds that a row takes in training steps, without evaluations and checkpoints, by the journal."""
    seconds, seen = 0.0, 0
    for record in read_metrics_log(run.metrics_path, run.files):
        if record["split"] == "train" and record.get("rows_per_s"):
            before, seen = seen, examples_seen(record["step"], rows, batch_size)
            seconds += (seen - before) / record["rows_per_s"]
    return seconds / max(1, seen)


def known_values(dataset: Dataset, table: str, least: int = 1) -> int:
    """Returns how many rows of a table of a vocabulary are used in training ``least`` times or more."""
    return int(np.count_nonzero(dataset.statistics().tables[table].accesses >= least))


def _of(figures: dict[str, Any], label: str) -> dict[str, float]:
    found = figures.get(label, figures)
    return {name: float(found[name]) for name in ("ne", "auc", "log_loss")}


def _map_bytes(dataset: Dataset, table: str) -> int:
    """Returns the bytes of the arrays of an encoder, without the header of their file."""
    path = dataset.folder / ENCODERS / encoder_file_names(table)[0]
    return int(json.loads(path.read_text(encoding="utf-8")).get("map_bytes", 0))
