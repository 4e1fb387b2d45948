"""Lookup, interaction blocks, models, sequence encoders and metrics compute on a GPU what they compute on the CPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from block_case import BlockCase
from block_cases import CASES
from composed_cases import CASES as COMPOSED_CASES
from model_cases import CONFIGS, dims_for, inputs_for
from test_sequence_encoders import DIM, LENGTHS, POSITIONS
from torch import Tensor, nn

from tests.cuda.conftest import WANTED
from tests.embeddings.test_lookup import OPTIMIZERS, SCHEMA, dense_step, make_batch, reference
from ziggurat.core.plan import Plan
from ziggurat.embeddings.config import EmbeddingsConfig, TableConfig
from ziggurat.embeddings.layout import Positions, lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.interactions.sequences.attention_pooling import AttentionPooling
from ziggurat.interactions.sequences.sequence_transformer import SequenceTransformer
from ziggurat.interactions.sequences.target_attention import TargetAttention
from ziggurat.metrics.metric_set import MetricSet
from ziggurat.optim.rows import RowOptimizerConfig
from ziggurat.training.process_group import process_group

FP64 = {"rtol": 1e-10, "atol": 1e-10}
POOLINGS: list[dict[str, Any]] = [
    {"tags": "sum", "history": "mean"},
    {"tags": "mean", "history": "sum"},
    {"tags": "mean", "history": Positions(AttentionPooling.Config(), 3)},
]


@pytest.fixture(autouse=True)
def _process_group(device: torch.device) -> Iterator[None]:
    with process_group(device):
        yield


def lookup_on(device: torch.device, config: EmbeddingsConfig, pooling: dict[str, Any] = POOLINGS[0]) -> EmbeddingLookup:
    layout = lay_out(config, SCHEMA, pooling)
    torch.manual_seed(0)
    return EmbeddingLookup(layout, Plan.single_device(t.name for t in layout.tables), device, 0)


@pytest.mark.parametrize("dim", [4, 8, 20, 64, 160, 512])
@pytest.mark.parametrize("size", [1, 300])
def test_looked_up_rows_equal_embedding_bag(device: torch.device, dim: int, size: int) -> None:
    lookup = lookup_on(device, EmbeddingsConfig(dim=dim, init_std=1.0))
    batch = make_batch(0, size)
    weights = {name: weight.cpu() for name, weight in lookup.weights().items()}
    torch.testing.assert_close(
        lookup(batch.to(device)).cpu(), reference(weights, lookup.layout.tables, batch), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: f"{o.name}-{getattr(o, 'weight_decay', 0)}")
def test_a_step_is_one_update_of_summed_gradients(device: torch.device, optimizer: RowOptimizerConfig) -> None:
    lookup = lookup_on(device, EmbeddingsConfig(dim=8, init_std=1.0, optimizer=optimizer))
    weights = {name: weight.cpu().clone() for name, weight in lookup.weights().items()}
    states: dict[str, dict[str, Tensor]] = {name: {} for name in weights}
    target = torch.randn(40, 4, 8, generator=torch.Generator().manual_seed(1))
    for step in range(1, 6):
        batch = make_batch(step, 40)
        ((lookup(batch.to(device)) - target.to(device)) ** 2).sum().backward()
        lookup.exchange()
        with torch.no_grad():
            lookup(make_batch(99, 7).to(device))  # an evaluation in between changes nothing
        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        ((reference(leaves, lookup.layout.tables, batch) - target) ** 2).sum().backward()
        for name, leaf in leaves.items():
            assert leaf.grad is not None
            weights[name] = dense_step(optimizer, weights[name], leaf.grad, states[name], step)
    for name, weight in lookup.weights().items():
        torch.testing.assert_close(weight.cpu(), weights[name], rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("pooling", POOLINGS, ids=["sum", "mean", "positions"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: f"{o.name}-{getattr(o, 'weight_decay', 0)}")
def test_dirty_rows_are_those_whose_bits_differ(
    device: torch.device, optimizer: RowOptimizerConfig, pooling: dict[str, Any]
) -> None:
    """Also while a snapshot is pending, whose rows keep the values of its moment."""
    lookup = lookup_on(device, EmbeddingsConfig(dim=8, init_std=1.0, optimizer=optimizer), pooling)
    before = {shard.table: shard.weight.tensor.cpu().clone() for shard in lookup.shards()}
    pending = {shard.table: shard.dirty.begin_snapshot("all", "last") for shard in lookup.shards()}
    first = {name: each.take(3) for name, each in pending.items()}
    for step in range(3):
        rows_BFD = lookup(make_batch(step).to(device))
        (
            rows_BFD * torch.randn(rows_BFD.shape, generator=torch.Generator().manual_seed(step)).to(device)
        ).sum().backward()
        lookup.exchange()
    for shard in lookup.shards():
        found = [first[shard.table]]
        while (taken := pending[shard.table].take(5)) is not None:
            found.append(taken)
        parts = [each for each in found if each is not None]
        assert torch.cat([rows for rows, _ in parts]).tolist() == list(range(shard.spec.rows))
        assert torch.equal(torch.cat([values[""] for _, values in parts]), before[shard.table])
        differ = (shard.weight.tensor.cpu() != before[shard.table]).any(1).nonzero().squeeze(1).tolist()
        after = shard.dirty.begin_snapshot("last", "last")
        dirty = after.take(10**6)
        assert dirty is not None
        assert differ
        assert len(differ) < shard.spec.rows or shard.table != "user"
        assert dirty[0].tolist() == differ


def test_tables_of_several_dims_and_optimizers(device: torch.device) -> None:
    config = EmbeddingsConfig(
        dim=8,
        init_std=1.0,
        optimizer=OPTIMIZERS[2],
        tables={"item": TableConfig(dim=4, optimizer=OPTIMIZERS[3]), "tags": TableConfig(optimizer=OPTIMIZERS[0])},
    )
    here, there = lookup_on(device, config), lookup_on(torch.device("cpu"), config)
    for step in range(3):
        for lookup, where in ((here, device), (there, torch.device("cpu"))):
            lookup(make_batch(step).to(where)).square().sum().backward()
            lookup.exchange()
    assert here.optimizer_state().keys() == there.optimizer_state().keys()
    for name, state in here.optimizer_state().items():
        torch.testing.assert_close(state.cpu(), there.optimizer_state()[name].cpu(), rtol=1e-4, atol=1e-5)
    for name, weight in here.weights().items():
        torch.testing.assert_close(weight.cpu(), there.weights()[name], rtol=1e-4, atol=1e-4)


def test_an_id_outside_its_table_is_named(tmp_path: Path) -> None:
    """The process can compute afterwards, which it could not after a failed assertion inside a kernel.

    In a process of its own, so that a failure is that of this test alone.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.cuda.ids_outside", WANTED, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout[-9:]) == (0, "survived\n"), done.stdout + done.stderr


def outcomes(module: nn.Module, inputs: list[Tensor], device: torch.device) -> list[Tensor]:
    """Returns the outputs, and the gradients of inputs and parameters, on the CPU."""
    module = module.to(device)
    leaves = [each.detach().to(device).requires_grad_(each.is_floating_point()) for each in inputs]
    outputs = module(*leaves)
    outputs = outputs if isinstance(outputs, Tensor) else outputs[0]
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    wanted = [each for each in (*leaves, *module.parameters()) if each.requires_grad]
    found = torch.autograd.grad((outputs * weights.to(device)).sum(), wanted, allow_unused=True)
    return [outputs.detach().cpu(), *(each.cpu() for each in found if each is not None)]


def assert_same(module: nn.Module, inputs: list[Tensor], device: torch.device) -> None:
    expected = outcomes(module, inputs, torch.device("cpu"))
    found = outcomes(module, inputs, device)
    assert len(found) == len(expected) > 1
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **FP64)


@pytest.mark.parametrize("case", [*CASES, *COMPOSED_CASES], ids=lambda case: case.name)
def test_every_block_computes_the_same(device: torch.device, case: BlockCase) -> None:
    torch.manual_seed(3)
    inputs = torch.randn(5, *case.shape, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
    assert_same(case.build().double(), [inputs], device)
    block = case.build().to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        outputs = block(inputs.float().to(device))
    torch.testing.assert_close(outputs.float(), block(inputs.float().to(device)), rtol=0.02, atol=0.05)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_model_computes_the_same(device: torch.device, name: str) -> None:
    dims = dims_for(CONFIGS[name], tasks=2)
    torch.manual_seed(0)
    model = CONFIGS[name].build(dims).double()
    assert_same(model, list(inputs_for(dims, rows=16, dtype=torch.float64)), device)


@pytest.mark.parametrize(
    "config",
    [AttentionPooling.Config(), TargetAttention.Config(target="item"),
     TargetAttention.Config(target="item", normalise=True), SequenceTransformer.Config(layers=2),
     SequenceTransformer.Config(target="item")],
    ids=["attention", "target_attention", "normalised", "transformer", "transformer-target"],
)  # fmt: skip
def test_every_sequence_encoder_computes_the_same(device: torch.device, config: Any) -> None:
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    states = torch.randn(len(LENGTHS), POSITIONS, DIM, generator=draw, dtype=torch.float64)
    mask = torch.arange(POSITIONS) < torch.tensor(LENGTHS)[:, None]
    target = torch.randn(len(LENGTHS), DIM, generator=draw, dtype=torch.float64)
    module = config.build(POSITIONS, DIM).double()
    assert_same(module, [states, mask, target], device)


def test_metrics_of_the_devices_logits_equal_those_of_the_cpus(device: torch.device) -> None:
    draw = torch.Generator().manual_seed(2)
    logits = torch.randn(5000, 2, generator=draw)
    labels = (torch.rand(5000, 2, generator=draw) < torch.sigmoid(logits)).float()
    groups = np.arange(5000) % 37
    found: list[dict[str, float]] = []
    for where in (device, torch.device("cpu")):
        metrics = MetricSet(["click", "buy"], grouped=True)
        for part in range(0, 5000, 640):
            some = slice(part, part + 640)
            metrics.update(logits[some].to(where).cpu().numpy(), labels[some].numpy(), None, groups[some])
        found.append(metrics.compute())
    assert found[0] == found[1]
