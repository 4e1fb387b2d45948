"""The Criteo example on a generated log of Criteo's shape gives the same metrics on two ranks as on one process.

Ranks sum float32 numbers in another order, so losses differ in their last digits (1e-7 when this was written), and rows
that score alike may change places: of some 4,000 test rows one pair in the other order is 3e-7 of AUC. Seeds differ by
1e-2. The batch is odd, so that in every step one rank has a row more than the other.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import ziggurat
from ziggurat.training.run_folder.metrics_log import read_metrics_log

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (
    "data.split={name: random, validation: 0.1, test: 0.2}",
    "training.batch_size=255",
    "training.epochs=2",
    "training.log_every=1",
)


def run(folder: Path, *arguments: str) -> None:
    status, _, err = ziggurat(*arguments, folder=folder)
    assert status == 0, err


def test_two_ranks_reach_the_auc_of_one_process(tmp_path: Path) -> None:
    run(tmp_path, "generate", "criteo_train.csv", "--shape", "criteo", "--rows", "20000")
    changes = [word for setting in SETTINGS for word in ("--set", setting)]
    found: dict[int, dict[str, dict[str, float]]] = {}
    losses: dict[int, list[float]] = {}
    for ranks in (1, 2):
        place = tmp_path / f"{ranks}-ranks"
        arguments = ["--data", str(tmp_path), "--run", str(place), "--nproc", str(ranks), *changes]
        run(tmp_path, "train", str(ROOT / "examples" / "criteo.yaml"), *arguments)
        found[ranks] = json.loads((place / "results.json").read_text(encoding="utf-8"))["figures"]
        losses[ranks] = [each["loss"] for each in read_metrics_log(place / "metrics.jsonl") if each["split"] == "train"]
    assert len(losses[1]) > 50
    assert losses[2] == pytest.approx(losses[1], abs=1e-5)
    for split in ("validation", "test"):
        one, two = found[1][split], found[2][split]
        assert one["rows"] == two["rows"] > 1000
        assert one["auc"] > 0.55
        assert two["auc"] == pytest.approx(one["auc"], abs=1e-5)
        assert two["log_loss"] == pytest.approx(one["log_loss"], abs=1e-5)
