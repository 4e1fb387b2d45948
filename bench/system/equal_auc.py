"""Trains a workload with ziggurat and with the hand-written loop, and compares their AUC on rows held out.

`python -m bench.system.equal_auc FOLDER EPOCHS SEED` writes ``{"ziggurat": auc, "handwritten": auc}`` to its output.
Ours trains with ``precision: auto``, as in the measured epochs, the loop in fp32. The held-out rows are those of
``held_out.parquet``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import torch

import ziggurat
from bench.peers.workload import HELD_OUT, LABEL, Workload, columns
from bench.system.handwritten import Loop, make_batches
from bench.system.ours import experiment
from ziggurat.metrics.ranking import auc
from ziggurat.metrics.rows import read_rows
from ziggurat.metrics.scores import ScoreHistogram


def main() -> None:
    folder, epochs, seed = Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3])
    print(json.dumps({"ziggurat": ours(folder, epochs, seed), "handwritten": handwritten(folder, epochs, seed)}))


def ours(folder: Path, epochs: int, seed: int) -> float:
    """Returns the AUC of ziggurat's last checkpoint."""
    workload = Workload.read(folder)
    changed = experiment(workload, len(columns(folder)[LABEL]), precision="auto")
    changed["data"]["split"]["test"] = [HELD_OUT]
    changed["training"] |= {"epochs": epochs, "seed": seed}
    os.chdir(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix="auc-") as scratch:
        path = Path(scratch) / "experiment.yaml"
        path.write_text(json.dumps(changed), encoding="utf-8")
        outcome = ziggurat.train(
            ziggurat.load_experiment(path), Path(scratch) / "run", prepared=folder / "prepared-auc", splits=("test",)
        )
    assert outcome.results is not None
    return float(outcome.results["figures"]["test"]["auc"])


def handwritten(folder: Path, epochs: int, seed: int) -> float:
    """Returns the AUC of the hand-written loop; the order of its rows is new in each epoch too."""
    workload = Workload.read(folder)
    loop, data = Loop(workload, seed), columns(folder)
    for epoch in range(epochs):
        loop.epoch(make_batches(data, workload, seed * epochs + epoch))
    histogram = ScoreHistogram(1 << 20)
    with torch.no_grad():
        for ids_N, offsets, labels_B in make_batches(columns(folder, HELD_OUT), workload):
            rows, _ = read_rows(loop.logits(ids_N, offsets, labels_B).numpy(), labels_B.numpy())
            histogram.add(rows)
    return auc(histogram)


if __name__ == "__main__":
    main()
