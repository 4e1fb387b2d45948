"""The step of ``dense_speed`` has the FLOPs that torch counts, and it trains."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.micro.dense_speed import shares
from bench.micro.dense_step import CASES, Matmul, Step
from ziggurat.interactions.dot_product import DotProduct

ROWS = 32


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_three_times_the_forward_flops(name: str) -> None:
    """Torch counts every matrix product of forward and backward; element-wise operations add less than 2 % to ours.

    The backward pass of X Xᵀ takes one product instead of two, so DHEN's dot-product layers compute slightly less.
    """
    step = Step(CASES[name], "fp32", compiled=False, rows=ROWS)
    with FlopCounterMode(display=False) as counter:
        step()
    products = 3 * ROWS * sum(block.matmul_flops() for block in step.model.parts())
    dots = [part for part in step.model.modules() if isinstance(part, DotProduct)]
    assert len(dots) == (3 if name == "dhen" else 0)
    assert counter.get_total_flops() == products - ROWS * sum(each.matmul_flops() for each in dots)
    assert products <= step.gflop * 1e9 <= 1.02 * products


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_learns_and_reaches_the_embeddings(precision: str) -> None:
    step = Step(CASES["wukong_small"], precision, compiled=False, rows=ROWS)
    losses = [step() for _ in range(20)]
    assert losses[-1] < 0.7 * losses[0]
    assert step.emb_BFD.grad is not None
    assert (step.emb_BFD.grad.abs().sum((0, 2)) > 0).all()


def test_the_reference_matrix_product_multiplies() -> None:
    matmul = Matmul("bf16", 64)
    matmul()
    assert matmul.out.dtype == torch.bfloat16
    torch.testing.assert_close(matmul.out, matmul.a @ matmul.b)
    assert matmul.gflop == 2 * 64**3 / 1e9


def test_a_share_is_the_better_of_eager_and_compiled_in_each_round() -> None:
    """In round 1, 60/100 exceeds 30/100. In round 2, on a machine half as fast, 45/50 exceeds 20/50."""
    rates = {"m_fp32_eager": (60.0, 20.0), "m_fp32_compiled": (30.0, 45.0), "m_bf16_eager": (80.0, 40.0)}
    references = {"m_fp32_eager": (100.0, 50.0), "m_fp32_compiled": (100.0, 50.0), "m_bf16_eager": (400.0, 400.0)}
    fp32, bf16 = shares(rates, references)
    assert (fp32.name, fp32.samples) == ("m_fp32", (0.6, 0.9))
    assert (bf16.name, bf16.samples) == ("m_bf16", (0.2, 0.1))
    assert fp32.note == "of the matrix product, eager or compiled"
