"""Sequence encoders against references that loop over a row's own positions, without mask or padding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from composed_references import affine, norm, relu, softmax
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ziggurat.core.config import parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.interactions.mlp import MLP
from ziggurat.interactions.sequences.attention_pooling import AttentionPooling
from ziggurat.interactions.sequences.sequence_encoder import SequenceEncoder
from ziggurat.interactions.sequences.sequence_pooling import SequenceEncoderConfig
from ziggurat.interactions.sequences.sequence_transformer import SequenceTransformer
from ziggurat.interactions.sequences.target_attention import TargetAttention

LENGTHS = (4, 0, 1, 3, 2)
ROWS, POSITIONS, DIM = len(LENGTHS), 4, 6


def attention_reference(block: AttentionPooling, states: list[Tensor], target: Tensor) -> Tensor:
    del target
    scores = [(block.query.weight[0] * torch.tanh(affine(block.hidden, h))).sum() for h in states]
    shares = softmax(torch.stack(scores))
    return sum((share * h for share, h in zip(shares, states, strict=True)), torch.zeros(DIM).double())


def target_attention_reference(block: TargetAttention, states: list[Tensor], target: Tensor) -> Tensor:
    first, _, last = block.mlp.layers
    weights = []
    for h in states:
        hidden = affine(first, torch.stack([*h, *target, *(h - target), *(h * target)]))
        weights.append(affine(last, torch.where(hidden > 0, hidden, 0.01 * hidden))[0])
    if block.normalise:
        weights = list(softmax(torch.stack(weights)))
    return sum((w * h for w, h in zip(weights, states, strict=True)), torch.zeros(DIM).double())


def transformer_reference(block: SequenceTransformer, states: list[Tensor], target: Tensor) -> Tensor:
    learned = list(block.place_PD)
    state = [h + p for h, p in zip(states, learned, strict=False)]
    if block.with_target:
        state.append(target + learned[-1])
    for layer in block.layers:
        state = [x + y for x, y in zip(state, _attended(layer, state), strict=True)]
        norm_before, wide, _, narrow = layer.feed_forward
        state = [x + affine(narrow, relu(affine(wide, norm(norm_before, x)))) for x in state]
    return state[-1] if block.with_target else torch.stack(state).sum(0) / len(state)


def _attended(layer: Any, state: list[Tensor]) -> list[Tensor]:
    """Applies each attention head separately, over the present positions."""
    size = DIM // layer.heads
    projected = [affine(layer.queries_keys_values, norm(layer.attention_norm, x)) for x in state]
    mixed: list[list[Tensor]] = [[] for _ in state]
    for head in range(layer.heads):
        start = head * size
        queries, keys, values = (
            [row[part * DIM + start : part * DIM + start + size] for row in projected] for part in range(3)
        )
        for place, query in enumerate(queries):
            shares = softmax(torch.stack([(query * key).sum() / math.sqrt(size) for key in keys]))
            mixed[place].append(sum(s * v for s, v in zip(shares, values, strict=True)))
    return [affine(layer.output, torch.cat(parts)) for parts in mixed]


@dataclass(frozen=True)
class EncoderCase:
    """One setting of one encoder, with its FLOPs for 4 positions of 6 dims counted by hand."""

    name: str
    config: SequenceEncoderConfig
    reference: Callable[[Any, list[Tensor], Tensor], Tensor]
    flops: int


SMALL = MLP.Config(hidden=(5,), activation="leaky_relu")
CASES = [
    # Per position 6 → 3 → 1, then the weighted sum.
    EncoderCase("attention", AttentionPooling.Config(hidden=3), attention_reference, 4 * 2 * (18 + 3 + 6)),
    # Per position 24 → 5 → 1 and the weighted sum; 6 differences and 6 products.
    EncoderCase(
        "target",
        TargetAttention.Config(target="t", mlp=SMALL),
        target_attention_reference,
        4 * 2 * (120 + 5 + 6) + 4 * 12,
    ),
    EncoderCase(
        "target-softmax",
        TargetAttention.Config(target="t", mlp=SMALL, normalise=True),
        target_attention_reference,
        4 * 2 * (120 + 5 + 6) + 4 * 12,
    ),
    # Per layer and position 6 → 18, 6 → 6, 6 → 7 → 6 and 4 scores and values of 6 dims; the mean; then the sums.
    EncoderCase(
        "transformer",
        SequenceTransformer.Config(layers=2, heads=2, feed_forward=7),
        transformer_reference,
        2 * (4 * 2 * (108 + 36 + 42 + 42) + 2 * 2 * 4 * 4 * 6) + 2 * 4 * 6 + 4 * 6 * 5 + 6,
    ),
    EncoderCase(
        "transformer-target",
        SequenceTransformer.Config(target="t", layers=1, heads=3, feed_forward=7),
        transformer_reference,
        5 * 2 * (108 + 36 + 42 + 42) + 2 * 2 * 5 * 5 * 6 + 5 * 6 * 3 + 6,
    ),
]

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def built(case: EncoderCase, seed: int = 3) -> SequenceEncoder:
    torch.manual_seed(seed)
    return case.config.build(POSITIONS, DIM).double()


def inputs(rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor]:
    """Returns positions, mask and target; absent positions hold noise."""
    generator = torch.Generator().manual_seed(11)
    positions = torch.randn(ROWS, POSITIONS, DIM, generator=generator, dtype=torch.float64)
    target = torch.randn(ROWS, DIM, generator=generator, dtype=torch.float64)
    mask = torch.arange(POSITIONS) < torch.tensor(LENGTHS)[:, None]
    return positions[:rows], mask[:rows], target[:rows]


def reference(case: EncoderCase, block: SequenceEncoder, positions: Tensor, target: Tensor) -> Tensor:
    rows = [
        case.reference(block, list(positions[row, :length]), target[row])
        if length
        else torch.zeros(DIM, dtype=torch.float64)
        for row, length in enumerate(LENGTHS)
    ]
    return torch.stack(rows)


@each_case
def test_forward_equals_the_loop_over_present_positions(case: EncoderCase) -> None:
    block, (positions, mask, target) = built(case), inputs()
    expected = reference(case, block, positions, target)
    torch.testing.assert_close(block(positions, mask, target), expected, rtol=1e-12, atol=1e-12)


@each_case
def test_backward_equals_the_loop_over_present_positions(case: EncoderCase) -> None:
    block, (positions, mask, target) = built(case), inputs()
    leaves = [positions.requires_grad_(), target.requires_grad_(), *block.parameters()]
    weights = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    ours = torch.autograd.grad((block(positions, mask, target) * weights).sum(), leaves, allow_unused=True)
    theirs = torch.autograd.grad((reference(case, block, positions, target) * weights).sum(), leaves, allow_unused=True)
    for leaf, mine, expected in zip(leaves, ours, theirs, strict=True):
        zeros = torch.zeros_like(leaf)
        torch.testing.assert_close(
            zeros if mine is None else mine, zeros if expected is None else expected, rtol=1e-11, atol=1e-11
        )


@each_case
def test_gradients_equal_finite_differences(case: EncoderCase) -> None:
    block, (positions, mask, target) = built(case), inputs()
    assert torch.autograd.gradcheck(
        lambda p, t: block(p, mask, t), (positions.requires_grad_(), target.requires_grad_())
    )


@each_case
def test_a_row_without_positions_gives_zeros_and_finite_gradients(case: EncoderCase) -> None:
    block, (positions, _, target) = built(case).float(), inputs()
    leaves = [positions.float().requires_grad_(), target.float().requires_grad_(), *block.parameters()]
    outputs = block(leaves[0], torch.zeros(ROWS, POSITIONS, dtype=torch.bool), leaves[1])
    assert torch.equal(outputs, torch.zeros(ROWS, DIM))
    for gradient in torch.autograd.grad(outputs.sum(), leaves, allow_unused=True):
        assert gradient is None or torch.equal(gradient, torch.zeros_like(gradient))


@each_case
def test_the_vectors_of_absent_positions_have_no_effect(case: EncoderCase) -> None:
    block, (positions, mask, target) = built(case), inputs()
    other = torch.where(mask.unsqueeze(2), positions, 1e3)
    torch.testing.assert_close(block(other, mask, target), block(positions, mask, target), rtol=1e-12, atol=1e-12)


@each_case
def test_a_rows_output_depends_on_that_row_alone(case: EncoderCase) -> None:
    block, (positions, mask, target) = built(case), inputs()
    whole = block(positions, mask, target)
    for row in range(ROWS):
        one = slice(row, row + 1)
        torch.testing.assert_close(block(positions[one], mask[one], target[one])[0], whole[row], rtol=1e-12, atol=1e-12)
    assert block(*inputs(rows=0)).shape == (0, DIM)


@each_case
def test_flops_equal_the_hand_count_and_torchs_counter(case: EncoderCase) -> None:
    block = built(case)
    assert block.flops() == case.flops
    with FlopCounterMode(display=False) as counter:
        block(*inputs())
    assert counter.get_total_flops() == ROWS * block.matmul_flops()


@each_case
def test_one_seed_gives_one_encoder(case: EncoderCase) -> None:
    first, second, other = (list(built(case, seed).parameters()) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))


@each_case
def test_bfloat16_autocast_stays_close(case: EncoderCase) -> None:
    """bf16 has 8 bits of mantissa, so the tolerance is 2 % relative, and absolute for sums that cancel."""
    block, (positions, mask, target) = built(case).float(), inputs()
    arguments = (positions.float(), mask, target.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = block(*arguments)
    torch.testing.assert_close(outputs.float(), block(*arguments), rtol=0.02, atol=0.05)


def test_attention_with_a_zero_query_is_the_mean() -> None:
    block, (positions, mask, _) = built(CASES[0]), inputs()
    torch.nn.init.zeros_(block.query.weight)
    means = [positions[row, :length].mean(0) for row, length in enumerate(LENGTHS) if length]
    torch.testing.assert_close(block(positions, mask)[mask.any(1)], torch.stack(means), rtol=1e-12, atol=1e-12)


def test_target_attention_with_unit_weights_is_the_sum() -> None:
    block, (positions, mask, target) = built(CASES[1]), inputs()
    last = block.mlp.layers[-1]
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.ones_(last.bias)
    sums = [positions[row, :length].sum(0) for row, length in enumerate(LENGTHS)]
    torch.testing.assert_close(block(positions, mask, target), torch.stack(sums), rtol=1e-12, atol=1e-12)


def test_only_the_transformer_depends_on_the_order() -> None:
    for case in CASES:
        block, (positions, _, target) = built(case), inputs()
        full = torch.ones(ROWS, POSITIONS, dtype=torch.bool)
        same = torch.allclose(block(positions, full, target), block(positions.flip(1), full, target), rtol=1e-9)
        assert same != isinstance(block, SequenceTransformer), case.name


def test_each_encoder_names_its_target_feature() -> None:
    assert [case.config.target_feature for case in CASES] == [None, "t", "t", None, "t"]


def test_heads_that_do_not_divide_the_dim_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"4 heads cannot share rows of 6 floats[\s\S]*divides the table's dim"):
        SequenceTransformer.Config(heads=4).build(POSITIONS, DIM)


def test_batch_norm_over_positions_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"mlp: norm: batch would count positions"):
        parse_config(TargetAttention.Config, {"target": "t", "mlp": {"norm": "batch"}})
