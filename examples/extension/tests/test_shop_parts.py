"""The parts keep the contracts of their kinds, and a run with them trains, resumes, predicts and reports.

Run it with ``pytest examples/extension``; your own package can have the same tests.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

FOLDER = Path(__file__).parent.parent
sys.path.insert(0, str(FOLDER))

from shop_parts.block import FieldGates  # noqa: E402  (found by the line above)
from shop_parts.encoder import PrefixEncoder  # noqa: E402
from shop_parts.model import WeightedPairs  # noqa: E402
from shop_parts.sequence_encoder import Recency  # noqa: E402

from ziggurat.extension import ModelDims, ValueCounts  # noqa: E402
from ziggurat.extension_testing import check_encoder  # noqa: E402


def ziggurat(folder: Path, *arguments: str) -> str:
    """What the command line prints, run in ``folder``."""
    command = [sys.executable, "-m", "ziggurat", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example with a small log."""
    folder = tmp_path_factory.mktemp("extension") / "shop"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    ziggurat(folder, "generate", "shop.csv", "--rows", "2000")
    return folder


def test_a_run_trains_resumes_predicts_and_reports(shop: Path) -> None:
    settings = ["--set", "training.max_steps=4", "--set", "training.batch_size=128", "--run", "runs/shop"]
    ziggurat(shop, "train", "shop.yaml", *settings)
    assert "resuming at step 4 of 6" in ziggurat(
        shop, "train", "shop.yaml", "--set", "training.max_steps=6", *settings[2:]
    )
    ziggurat(shop, "predict", "runs/shop", "shop.csv", "-o", "scored.csv")
    assert len((shop / "scored.csv").read_text().splitlines()) == 2001
    ziggurat(shop, "report", "runs/shop")
    assert "shop_parts.model:WeightedPairs" in (shop / "runs/shop/report.html").read_text()


def test_a_block_stands_beside_the_built_in_ones(shop: Path) -> None:
    ziggurat(shop, "train", "shop_dhen.yaml", "--set", "training.max_steps=2", "--run", "runs/dhen")


def test_another_version_of_an_encoder_is_prepared_again(shop: Path) -> None:
    ziggurat(shop, "prepare", "shop.yaml")
    before = {path.name for path in (shop / "prepared").iterdir()}
    code = shop / "shop_parts" / "encoder.py"
    text = code.read_text()
    code.write_text(text.replace("version: ClassVar[int] = 1", "version: ClassVar[int] = 2"))
    ziggurat(shop, "prepare", "shop.yaml")
    code.write_text(text)
    assert len({path.name for path in (shop / "prepared").iterdir()} - before) == 1


def test_the_model_is_differentiable_and_has_a_logit_per_task() -> None:
    model = WeightedPairs.Config(hidden=8).build(ModelDims(dense=2, features=4, dim=3, tasks=2))
    dense_BF, emb_BFD = torch.randn(5, 2), torch.randn(5, 4, 3, requires_grad=True)
    logits_BT = model(dense_BF, emb_BFD)
    assert logits_BT.shape == (5, 2)
    logits_BT.sum().backward()
    assert emb_BFD.grad is not None
    assert all(parameter.grad is not None for parameter in model.parameters())


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
