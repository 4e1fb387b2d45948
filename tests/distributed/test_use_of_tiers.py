"""What a run whose tables are in tiers leaves is what a single process leaves: nothing that reads it knows of tiers."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.numpy import load_file

from tests.distributed.ranks import run_ranks
from tests.distributed.test_tiered_training import tiered_values
from tests.exporting.test_export_parity import assert_same
from tests.training.test_offloaded_run import ITEMS, USERS, write_large_log
from tests.training.test_train import assert_same_bits, tensors
from ziggurat.checkpoint.follow.follower import Follower
from ziggurat.core.config import parse_config
from ziggurat.core.plan import Plan
from ziggurat.data.readers.table_reader import read_table
from ziggurat.exporting.export import export
from ziggurat.serving.model.scorer import Scorer
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.prediction.predictor import Predictor
from ziggurat.training.run_folder.run_files import LOOKUPS_FILE, PLAN_FILE, ROW_ORDER_FILE, RunFiles
from ziggurat.verification.verify import verify

RANKS, MIDDLE, LAST, BATCH = 2, 5, 15, 16
TIERED = (
    Plan(RANKS, {}, RANKS)
    .placed("user", "row_tiers", range(RANKS), copied_rows=20, host_rows=100)
    .placed("item", "row_tiers", range(RANKS), copied_rows=50, host_rows=400)
)
ROWS = {"user": ["u1", "u2", "nobody"], "item": [3, 4, 5], "history": [[1, 2], [], [7, 7, 9]]}


def experiment(folder: Path, **changes: Any) -> Experiment:
    values = tiered_values(folder)
    values["training"] |= {"max_steps": LAST, "evaluate_every": 10}
    values["planning"] = {"planner": {"name": "flexshard", "tables": ["user", "item"], "extra_memory": None}, **changes}
    values["planning"]["topology"] = {"memory": "1GB", "intra_bandwidth": "1GB/s", "lookup_bandwidth": "10GB/s"}
    return parse_config(Experiment, values)


def used(rank: int, folder: Path) -> dict[str, Any]:
    """Trains under two plans with tiers, evaluates, and starts another run from the result, in one process group."""
    os.environ["LOCAL_WORLD_SIZE"] = str(RANKS)
    wanted, run = experiment(folder), folder / "run"
    api.train(wanted, run, prepared=folder / "prepared", stop_after=MIDDLE)
    first = api.load_run(run).plan
    if rank == 0:
        RunFiles.open(run).write_json(PLAN_FILE, TIERED.to_json())
    api.train(wanted, run, prepared=folder / "prepared")
    warm = wanted.model_dump(mode="json")
    warm["training"]["warm_start"] = {"run": str(run), "checkpoint": "last", "optimizer": True}
    api.train(parse_config(Experiment, warm), folder / "warm", prepared=folder / "prepared", stop_after=0)
    fewer = wanted.model_dump(mode="json")
    fewer["training"] |= {"negative_rate": 0.1, "batch_size": 8 * BATCH, "max_steps": 10}
    api.train(parse_config(Experiment, fewer), folder / "dropped", prepared=folder / "prepared")
    return {"figures": api.evaluate(run, checkpoint="last").compute(), "first": first}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("tiers")
    write_large_log(folder / "log.csv")
    return folder, run_ranks(RANKS, used, folder)


def test_a_plan_with_tiers_was_taken(trained: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, found = trained
    for plan in (found[0]["first"], api.load_run(folder / "run").plan):
        assert {each["sharding"] for each in plan["placements"].values()} == {"row_tiers"}


def test_figures_of_tiers_count_the_batches_of_their_steps_alone(
    trained: tuple[Path, list[dict[str, Any]]],
) -> None:
    """A look-up that is started ahead is counted in the step that takes it: a batch has one user an example."""
    folder, _ = trained
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [each for each in map(json.loads, lines) if "user/copied_rows" in each]
    assert len(records) >= 2
    examples = BATCH / RANKS
    for record in records:
        assert examples / 2 < sum(record[f"user/{tier}_rows"] for tier in ("copied", "host", "split")) <= examples


def test_figures_expected_are_those_of_rows_that_are_kept(trained: tuple[Path, list[dict[str, Any]]]) -> None:
    """Nine of ten negatives are dropped before they are looked up."""
    folder, _ = trained
    lines = (folder / "dropped" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [each for each in map(json.loads, lines) if "user/copied_rows" in each]
    for table in ("user", "item"):
        found, expected = (
            sum(record[f"{table}/{tier}_{name}"] for record in records for tier in ("copied", "host", "split"))
            for name in ("rows", "rows_expected")
        )
        assert found == pytest.approx(expected, rel=0.2), table


def test_a_single_process_evaluates_what_the_ranks_do(trained: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, found = trained
    assert api.evaluate(folder / "run", checkpoint="last").compute() == found[0]["figures"]


def test_a_warm_start_of_ranks_with_tiers_equals_that_of_one_process(
    trained: tuple[Path, list[dict[str, Any]]],
) -> None:
    folder, _ = trained
    warm = experiment(folder).model_dump(mode="json")
    warm["training"]["warm_start"] = {"run": str(folder / "run"), "checkpoint": "last", "optimizer": True}
    api.train(parse_config(Experiment, warm), folder / "alone", prepared=folder / "prepared", stop_after=0)
    one, ranks = tensors(folder / "alone", 0), tensors(folder / "warm", 0)
    shared = [name for name in one if not name.startswith("random")]
    assert_same_bits({name: one[name] for name in shared}, {name: ranks[name] for name in shared})
    old = tensors(folder / "run", LAST)
    assert torch.equal(one["tables:item"], old["tables:item"])


def test_a_follower_goes_from_delta_to_delta_over_a_change_of_plans(
    trained: tuple[Path, list[dict[str, Any]]],
) -> None:
    """Rows that several ranks hold are in each delta once."""
    folder, _ = trained
    checkpoints = api.load_run(folder / "run").checkpoints
    assert checkpoints.steps() == [MIDDLE, 10, LAST]
    follower = Follower(checkpoints)
    for step in checkpoints.steps():
        whole = checkpoints.load(step).groups["tables"]
        follower.advance()
        for name, table in follower.tables.items():
            assert table.shape == whole[name].shape
    assert follower.step == LAST
    for name, table in follower.tables.items():
        assert torch.equal(table, tensors(folder / "run", LAST)[f"tables:{name}"])
    for step in checkpoints.steps():
        manifest = checkpoints.manifest(step)
        assert manifest is not None
        written = Counter[str]()
        for file in manifest.files:
            for block in file.blocks:
                written[block.table] += block.rows
        if manifest.kind == "full":
            assert written == {"user": USERS, "item": ITEMS}
        else:  # at most the ids of its batches
            assert 0 < written["user"] <= BATCH * (LAST - MIDDLE)
            assert 0 < written["item"] <= BATCH * (LAST - MIDDLE) * 4


def test_an_export_serves_what_the_run_predicts(trained: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = trained
    found = export(api.load_run(folder / "run"), folder / "out")
    assert found.manifest.deviation["largest_logit_difference"] == 0
    scorer = Scorer.open(folder / "out", check_tables=True)
    with Predictor(folder / "run") as predictor:
        block = read_table(pa.table(ROWS), predictor.transform.raw_schema(labelled=False))
        assert_same(predictor.score(block), scorer.score(block))


def resumed(rank: int, folder: Path, run: str, when: str) -> None:
    os.environ["LOCAL_WORLD_SIZE"] = str(RANKS)
    if rank == 0:  # nearly all rows have copies, though a batch touches few: their sums are sent to all
        rows = {"user": USERS - 10, "item": ITEMS - 10}
        placements = {
            name: replace(each, copied_rows=rows[name], host_rows=0) for name, each in TIERED.placements.items()
        }
        RunFiles.open(folder / run).write_json(PLAN_FILE, replace(TIERED, placements=placements).to_json())
    api.train(experiment(folder, new_plan=when), folder / run, prepared=folder / "prepared", stop_after=LAST)


def test_a_new_plan_is_taken_where_lookups_have_moved(trained: tuple[Path, list[dict[str, Any]]]) -> None:
    """The stored order puts rows first that are never looked up, and copies nearly all."""
    (folder, _), when = trained, "drifted"
    run = folder / "run"
    shutil.rmtree(run / "checkpoints" / f"step-{LAST:08d}")
    files = RunFiles.open(run)
    order = load_file(run / ROW_ORDER_FILE)
    turned = {name: np.ascontiguousarray(len(each) - 1 - each) for name, each in order.items()}
    files.write_arrays(ROW_ORDER_FILE, turned)
    run_ranks(RANKS, resumed, folder, "run", when)
    plan = api.load_run(run).plan
    assert plan is not None
    assert plan["notes"][0].startswith(f"planning.new_plan={when}: a new plan by look-ups counted in the next ")
    assert "table 'item'" in plan["notes"][0]
    counts, now = load_file(run / LOOKUPS_FILE), load_file(run / ROW_ORDER_FILE)
    for name, each in now.items():
        assert counts[name][np.argsort(each)].tolist() == sorted(counts[name].tolist(), reverse=True)
    assert verify(run).whole
