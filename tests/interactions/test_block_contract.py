"""The contract of interaction blocks; ``block_cases.py`` and ``composed_cases.py`` list the blocks."""

from __future__ import annotations

import pytest
import torch
from block_case import BlockCase
from block_cases import CASES
from composed_cases import CASES as COMPOSED_CASES
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

ROWS = 5

pytestmark = pytest.mark.parametrize("case", [*CASES, *COMPOSED_CASES], ids=lambda case: case.name)


def inputs_for(case: BlockCase, rows: int = ROWS, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(11)
    return torch.randn(rows, *case.shape, generator=generator, dtype=dtype)


def built(case: BlockCase, seed: int = 3):
    torch.manual_seed(seed)
    return case.build().double()


def test_forward_equals_the_plain_reference(case: BlockCase) -> None:
    block, inputs = built(case), inputs_for(case)
    torch.testing.assert_close(block(inputs), case.reference(block, inputs), rtol=1e-12, atol=1e-12)


def test_backward_equals_the_plain_reference(case: BlockCase) -> None:
    block = built(case)
    inputs = inputs_for(case).requires_grad_()
    leaves = [inputs, *block.parameters()]
    outputs = block(inputs)
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    ours = torch.autograd.grad((outputs * weights).sum(), leaves)
    theirs = torch.autograd.grad((case.reference(block, inputs) * weights).sum(), leaves, allow_unused=True)
    for mine, reference in zip(ours, theirs, strict=True):
        expected = torch.zeros_like(mine) if reference is None else reference
        torch.testing.assert_close(mine, expected, rtol=1e-11, atol=1e-11)


def test_gradients_equal_finite_differences(case: BlockCase) -> None:
    block = built(case)
    names = [name for name, _ in block.named_parameters()]
    parameters = [parameter.detach().clone().requires_grad_() for parameter in block.parameters()]

    def call(inputs: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(block, dict(zip(names, values, strict=True)), (inputs,))

    assert torch.autograd.gradcheck(call, (inputs_for(case, rows=2).requires_grad_(), *parameters))


def test_output_shape_is_the_declared_one(case: BlockCase) -> None:
    block = built(case)
    assert block.out_features == case.outputs[0]
    assert block(inputs_for(case)).shape == (ROWS, *case.outputs)


def test_flops_equal_the_hand_count(case: BlockCase) -> None:
    assert built(case).flops() == case.flops


def test_matmul_flops_equal_torchs_counter(case: BlockCase) -> None:
    block = built(case)
    with FlopCounterMode(display=False) as counter:
        block(inputs_for(case))
    assert counter.get_total_flops() == ROWS * block.matmul_flops()


def test_a_rows_output_depends_on_that_row_alone(case: BlockCase) -> None:
    block, inputs = built(case), inputs_for(case)
    for row in range(ROWS):
        torch.testing.assert_close(block(inputs[row : row + 1])[0], block(inputs)[row], rtol=1e-12, atol=1e-12)


def test_an_empty_batch_gives_an_empty_output(case: BlockCase) -> None:
    assert built(case)(inputs_for(case, rows=0)).shape == (0, *case.outputs)


def test_one_seed_gives_one_block(case: BlockCase) -> None:
    torch.manual_seed(1)
    first = case.build()
    torch.manual_seed(1)
    second = case.build()
    torch.manual_seed(2)
    other = case.build()
    pairs = list(zip(first.state_dict().values(), second.state_dict().values(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    if pairs:
        assert any(not torch.equal(a, c) for a, c in zip(first.parameters(), other.parameters(), strict=True))


def test_dtype_follows_the_block(case: BlockCase) -> None:
    assert built(case).float()(inputs_for(case, dtype=torch.float32)).dtype == torch.float32


def test_strided_input_gives_the_same_values(case: BlockCase) -> None:
    block, inputs = built(case), inputs_for(case)
    strided = torch.stack([inputs, torch.zeros_like(inputs)], dim=-1)[..., 0]
    assert not strided.is_contiguous()
    torch.testing.assert_close(block(strided), block(inputs), rtol=1e-12, atol=1e-12)


def test_bfloat16_autocast_stays_close(case: BlockCase) -> None:
    """bf16 has 8 bits of mantissa, so the tolerance is 1 % relative, and absolute for sums that cancel."""
    block, inputs = built(case).float(), inputs_for(case, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = block(inputs)
    torch.testing.assert_close(outputs.float(), block(inputs), rtol=0.02, atol=0.05)
