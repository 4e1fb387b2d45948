"""The parts keep the contracts of their kinds, and a run with them trains, resumes, predicts and reports.

Run it with ``pytest examples/extension``; your own package can have the same tests.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

FOLDER = Path(__file__).parent.parent
sys.path.insert(0, str(FOLDER))

from shop_parts.block import FieldGates  # noqa: E402  (found by the line above)
from shop_parts.encoder import PrefixEncoder  # noqa: E402
from shop_parts.head import Towers  # noqa: E402
from shop_parts.model import WeightedPairs  # noqa: E402
from shop_parts.optimizer import Lion  # noqa: E402
from shop_parts.planner import LargestFirst  # noqa: E402
from shop_parts.search_space import CrossedSpace  # noqa: E402
from shop_parts.sequence_encoder import Recency  # noqa: E402

from ziggurat.cli.main import app  # noqa: E402
from ziggurat.extension import ModelDims, ValueCounts  # noqa: E402
from ziggurat.extension_testing import (  # noqa: E402
    check_block,
    check_dense_optimizer,
    check_encoder,
    check_head,
    check_model,
    check_planner,
    check_sequence_encoder,
)
from ziggurat.search.architecture.space.cost import FlopsCost  # noqa: E402
from ziggurat.search.architecture.space.decision import certain, chosen  # noqa: E402


def ziggurat(folder: Path, *arguments: str) -> str:
    """What the command line prints, run in ``folder``, in this process, which has imported the libraries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def started(folder: Path, *arguments: str) -> str:
    """What the command line prints, run in ``folder``, in a process of its own, which imports the parts anew."""
    command = [sys.executable, "-m", "ziggurat", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example with a small log."""
    folder = tmp_path_factory.mktemp("extension") / "shop"
    shutil.copytree(
        FOLDER, folder, ignore=shutil.ignore_patterns("tests", "__pycache__", "runs", "prepared", "*.csv", "*.json")
    )
    ziggurat(folder, "generate", "shop.csv", "--rows", "2000")
    return folder


def test_a_run_trains_resumes_predicts_and_reports(shop: Path) -> None:
    settings = ["--set", "training.max_steps=4", "--set", "training.batch_size=128", "--run", "runs/shop"]
    started(shop, "train", "shop.yaml", *settings)
    assert "resuming at step 4 of 6" in ziggurat(
        shop, "train", "shop.yaml", "--set", "training.max_steps=6", *settings[2:]
    )
    ziggurat(shop, "predict", "runs/shop", "shop.csv", "-o", "scored.csv")
    assert len((shop / "scored.csv").read_text().splitlines()) == 2001
    ziggurat(shop, "report", "runs/shop")
    assert "shop_parts.model:WeightedPairs" in (shop / "runs/shop/report.html").read_text()


def test_a_block_a_head_an_optimizer_and_a_planner_stand_in_for_built_in_ones(shop: Path) -> None:
    ziggurat(shop, "train", "shop_dhen.yaml", "--set", "training.max_steps=2", "--run", "runs/dhen")


def test_another_version_of_an_encoder_is_prepared_again(shop: Path) -> None:
    started(shop, "prepare", "shop.yaml")
    before = {path.name for path in (shop / "prepared").iterdir()}
    code = shop / "shop_parts" / "encoder.py"
    text = code.read_text()
    code.write_text(text.replace("version: ClassVar[int] = 1", "version: ClassVar[int] = 2"))
    started(shop, "prepare", "shop.yaml")
    code.write_text(text)
    assert len({path.name for path in (shop / "prepared").iterdir()} - before) == 1


def test_the_model_keeps_the_contract() -> None:
    model = check_model(WeightedPairs.Config(hidden=8))
    assert model.parameter_count() == (35 * 8 + 8) + (8 * 2 + 2) + 2 * 6


def test_the_block_keeps_the_contract() -> None:
    assert check_block(FieldGates.Config(reduction=2)).out_features == 5


def test_the_head_keeps_the_contract_and_its_flops_are_counted() -> None:
    """Three tasks: a product of 10 x 4 and one of 4 x 1 each, of two FLOPs a multiplication."""
    assert check_head(Towers.Config(hidden=4), inputs=10, tasks=3).flops() == 3 * 2 * (10 * 4 + 4)


def test_the_sequence_encoder_keeps_the_contract() -> None:
    check_sequence_encoder(Recency.Config(half_life=2.0))


def test_the_optimizer_keeps_the_contract() -> None:
    check_dense_optimizer(Lion.Config(lr=0.01, weight_decay=0.1))


def test_the_planner_keeps_the_contract_and_spreads_tables() -> None:
    plan = check_planner(LargestFirst.Config())
    assert len({placement.ranks for placement in plan.placements.values()}) == 3


def test_a_step_of_lion_by_hand() -> None:
    """The first mean is 0, so w = 1 - .1 * sign(g) for vectors, which do not decay; then m = .01 g."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = Lion.Config(lr=0.1, weight_decay=0.5).build({"weight": weight})
    weight.grad = torch.tensor([3.0, -2.0])
    optimizer.step()
    assert weight.tolist() == pytest.approx([0.9, 1.1])
    assert optimizer.state[weight]["mean"].tolist() == pytest.approx([0.03, -0.02])


def test_gates_of_zero_weights_change_nothing() -> None:
    block = FieldGates.Config().build(6, 4)
    torch.nn.init.zeros_(block.excite.weight)
    torch.nn.init.zeros_(block.excite.bias)
    emb_BFD = torch.randn(3, 6, 4)
    assert torch.equal(block(emb_BFD), emb_BFD)


def test_recent_positions_count_more_and_empty_sequences_give_zeros() -> None:
    encoder = Recency.Config(half_life=1.0).build(3, 1)
    positions_BSD = torch.tensor([[[1.0], [0.0], [0.0]], [[5.0], [5.0], [5.0]]])
    mask_BS = torch.tensor([[True, True, True], [False, False, False]])
    assert encoder(positions_BSD, mask_BS).flatten().tolist() == pytest.approx([1 / 1.75, 0.0])


@pytest.mark.parametrize("ids", [["ab1", "ab2", "cd1", "é"], [101, 102, 201, -3]])
def test_the_encoder_keeps_the_contract(ids: list[str] | list[int]) -> None:
    check_encoder(PrefixEncoder.Config(length=2, min_count=3), ids, counts=[9, 1, 5, 0])


def test_rare_ids_share_the_row_of_their_prefix() -> None:
    counts = ValueCounts(pa.array(["ab1", "ab2", "cd1"]), np.array([9, 1, 1]))
    encoder = PrefixEncoder.Config(length=2, min_count=5).fit(counts)
    assert encoder.transform(pa.array(["ab1", "ab2", "ab9", "cd1", "zz"])).tolist() == [4, 2, 2, 3, 1]
    again = PrefixEncoder.from_state(*encoder.to_state())
    assert again == encoder


def test_the_search_space_is_searched_and_its_costs_are_those_of_its_models(shop: Path) -> None:
    output = ziggurat(
        shop, "search", "architecture", "shop_dhen.yaml", "--space", "shop_space.yaml", "--set", "training.epochs=1",
        "--set", "training.max_steps=2",
    )  # fmt: skip
    assert "best.yaml" in output.replace("\n", "")
    dims = ModelDims(dense=2, features=3, dim=4)
    space = CrossedSpace.Config().build(dims)
    for choices in itertools.product(*(range(len(each.choices)) for each in space.decisions)):
        architecture = dict(zip((each.name for each in space.decisions), choices, strict=True))
        model = space.model(chosen(space.decisions, architecture)).build(dims)
        assert float(space.expected_cost(certain(space.decisions, architecture), FlopsCost())) == model.flops()
