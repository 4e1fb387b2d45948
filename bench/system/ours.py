"""Trains a workload with ziggurat: `python -m bench.system.ours FOLDER [PRECISION]`.

It calls the public API as a user does: an experiment file, `prepare`, `train`. Epochs are timed by the progress that
`train` reports, and training waits in the progress callback between epochs. A measured epoch includes reading and
shuffling the memory-mapped dataset, the loader's thread, forward and backward pass, the optimizers, and logging at its
usual rate. It excludes preparation, building the model, evaluation and checkpoints; the latter two only happen after
the last epoch.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

import ziggurat
from bench.peers.protocol import Rounds
from bench.peers.workload import LABEL, Workload, columns
from bench.system.handwritten import TABLE_LR

MANY = 10**6


def main() -> None:
    leads, ranks = os.environ.get("RANK", "0") == "0", int(os.environ.get("WORLD_SIZE", "1"))
    rounds = Rounds() if leads else None
    folder = Path(sys.argv[1]).resolve()
    workload = Workload.read(folder)
    os.chdir(folder)
    rows = len(columns(folder)[LABEL])
    path = folder / f"experiment-{ranks}-{os.environ.get('RANK', '0')}.yaml"
    precision = sys.argv[2] if len(sys.argv) > 2 else "fp32"
    path.write_text(json.dumps(experiment(workload, rows, ranks, precision)), encoding="utf-8")
    progress = None if rounds is None else WaitBetweenEpochs(rounds, rows)
    prepared = folder / "prepared"
    ziggurat.train(ziggurat.load_experiment(path), folder / f"run-{ranks}", prepared=prepared, progress=progress)


def experiment(workload: Workload, rows: int, ranks: int = 1, precision: str = "fp32") -> dict[str, Any]:
    """Returns the config of a workload, with the workload's batch size on every rank.

    Progress is reported with each log line, and an epoch must end with one. Therefore ``log_every`` is the largest
    divisor of an epoch's steps up to the default of 20.
    """
    batch_size = workload.batch_size * ranks
    steps = -(-rows // batch_size)
    log_every = max(every for every in range(1, 21) if steps % every == 0)
    features = [
        {"name": name, "kind": "categorical", "type": "integer", "encoder": {"name": "identity", "rows": rows}}
        for name, rows in workload.tables.items()
    ]
    return {
        "name": workload.name,
        "data": {
            "source": {"name": "parquet", "files": ["train.parquet"]},
            "split": {"name": "files"},
            "labels": [{"name": LABEL}],
        },
        "features": features,
        "embeddings": {"dim": workload.dim, "optimizer": {"name": "rowwise_adagrad", "lr": TABLE_LR}},
        "model": {"name": "deepfm", "deep": {"hidden": workload.hidden}},
        "optimizer": {"name": "adam", "lr": workload.lr},
        "parallel": {"timeout_s": 3600},
        "training": {
            "batch_size": batch_size,
            "epochs": MANY,
            "evaluate_every": MANY,
            "log_every": log_every,
            "precision": precision,
        },
    }


class WaitBetweenEpochs:
    """A Progress that waits for the next ``epoch`` of the protocol when training has finished an epoch."""

    def __init__(self, rounds: Rounds, rows: int) -> None:
        self._rounds, self._rows = rounds, rows
        self._epochs = 0
        self._stage = ""

    def start(self, stage: str, total: float | None, unit: str) -> None:
        self._stage = stage
        if stage == "train":
            self._rounds.ready(torch.get_num_threads())
            self._rounds.begin()

    def advance(self, done: float, **figures: float | str) -> None:
        if self._stage != "train" or done < (self._epochs + 1) * self._rows - 0.5:
            return
        self._epochs += 1
        assert abs(done - self._epochs * self._rows) < 0.5, "an epoch ended between two log lines"
        self._rounds.end(self._rows, float(figures["loss"]))
        self._rounds.begin()

    def finish(self, message: str = "") -> None: ...

    def note(self, message: str) -> None:
        print(message, file=sys.stderr)


if __name__ == "__main__":
    main()
