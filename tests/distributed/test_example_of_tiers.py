"""`examples/histories.yaml` trains on two ranks with its item table in tiers, and one process reads the result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ziggurat.data.synthetic.generate import generate
from ziggurat.data.synthetic.shapes import demo_shape
from ziggurat.training import api

EXAMPLE = Path(__file__).parents[2] / "examples" / "histories.yaml"
STEPS = 6


def test_the_example_trains_with_its_items_in_tiers(tmp_path: Path) -> None:
    generate(demo_shape(4_000), tmp_path / "shop.csv")
    # the links within a host are fast: copies save little there
    settings = [f"training.max_steps={STEPS}", "training.batch_size=64", "planning.planner.least_gain=0"]
    command = [sys.executable, "-m", "ziggurat", "train", str(EXAMPLE), "--data", ".", "--nproc", "2"]
    command += [word for setting in settings for word in ("--set", setting)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-2000:]
    run = api.load_run(tmp_path / "runs" / "histories")
    placement = run.plan["placements"]["item_id"]
    assert placement["sharding"] == "row_tiers"
    assert placement["copied_rows"] + placement["host_rows"] > 0
    assert run.checkpoints.last() == STEPS
    assert 0.3 < api.evaluate(run).compute()["auc"] < 1
