"""`examples/histories.yaml` trains on four ranks with its item table in tiers, and one process reads the result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ziggurat.data.synthetic.generate import generate
from ziggurat.data.synthetic.shapes import demo_shape
from ziggurat.training import api

EXAMPLE = Path(__file__).parents[2] / "examples" / "histories.yaml"
ROWS = 4_000
"""Rows of the log, in which its default has 100,000."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("example")
    generate(demo_shape(ROWS), path / "shop.csv")
    return path


def run(folder: Path, *words: str) -> str:
    """Runs a command on the example as it is, and returns what it prints."""
    command = [sys.executable, "-m", "ziggurat", words[0], str(EXAMPLE), "--data", ".", *words[1:]]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def test_two_hosts_copy_rows_to_every_rank_and_to_every_host(folder: Path) -> None:
    placement = json.loads(run(folder, "plan", "--hosts", "2", "--devices", "2", "--json"))["plan"]["placements"]
    item = placement["item_id"]
    assert item["sharding"] == "row_tiers"
    assert item["copied_rows"] > 0
    assert item["host_rows"] > 0


def test_the_example_trains_with_copies_of_its_items(folder: Path) -> None:
    """The command of the example: four ranks of one machine, which is one host."""
    run(folder, "train", "--nproc", "4")
    trained = api.load_run(folder / "runs" / "histories")
    placement = trained.plan["placements"]["item_id"]
    assert placement["sharding"] == "row_tiers"
    assert placement["copied_rows"] > 0
    assert trained.checkpoints.last() == 2 * -(-ROWS * 8 // 10 // 1024)
    assert 0.3 < api.evaluate(trained).compute()["auc"] < 1
