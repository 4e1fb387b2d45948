"""What every listed block, head and sequence encoder keeps with its default settings; a new one is tested by its line
in the list. ``test_block_contract.py`` compares blocks with references besides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ziggurat.core.parts import built_in
from ziggurat.interactions.block import Block, BlockSettings
from ziggurat.interactions.field_blocks.composable import ComposableBlock
from ziggurat.interactions.heads.head import HeadSettings
from ziggurat.interactions.sequences.sequence_encoder import SequenceEncoderSettings
from ziggurat.interactions.sequences.sequence_pooling import SequenceEncoderConfig
from ziggurat.models.heads import HeadConfig

ROWS, FIELDS, DIM, TASKS = 5, 6, 8, 2


@dataclass(frozen=True)
class Member:
    """A part with how it is built, and how it is called on (B, F, D)."""

    name: str
    build: Callable[[], Block]
    call: Callable[[Block, Tensor], Tensor]
    output: tuple[int, ...] | None


def call_flat(block: Block, emb_BFD: Tensor) -> Tensor:
    return block(emb_BFD.flatten(1))


def call_encoder(block: Block, emb_BFD: Tensor) -> Tensor:
    return block(emb_BFD, torch.ones(emb_BFD.shape[:2], dtype=torch.bool), emb_BFD[:, 0])


def sequence_config(kind: type[SequenceEncoderSettings]) -> SequenceEncoderSettings:
    return kind.model_validate({"target": "item"} if "target" in kind.model_fields else {})


def encoder_of(kind: type[SequenceEncoderSettings]) -> Callable[[], Block]:
    return lambda: sequence_config(kind).build(FIELDS, DIM)


MEMBERS = [
    *(
        Member(f"block-{kind().title}", lambda kind=kind: kind().build(FIELDS, DIM), lambda b, x: b(x), None)
        for kind in built_in(ComposableBlock, BlockSettings)
    ),
    *(
        Member(
            f"head-{kind().title}",
            lambda kind=kind: kind().build(FIELDS * DIM, TASKS),
            call_flat,
            (TASKS,),
        )
        for kind in built_in(HeadConfig, HeadSettings)
    ),
    *(
        Member(
            f"encoder-{kind.__qualname__}",
            encoder_of(kind),
            call_encoder,
            (DIM,),
        )
        for kind in built_in(SequenceEncoderConfig, SequenceEncoderSettings)
    ),
]
pytestmark = pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)


def inputs() -> Tensor:
    return torch.randn(ROWS, FIELDS, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_its_output_has_the_promised_shape(member: Member) -> None:
    block = member.build().double()
    expected = member.output or (block.out_features, DIM)
    assert member.call(block, inputs()).shape == (ROWS, *expected)


def test_a_row_depends_on_itself_alone(member: Member) -> None:
    block = member.build().double().eval()
    emb_BFD = inputs()
    together = member.call(block, emb_BFD)
    alone = torch.cat([member.call(block, row[None]) for row in emb_BFD])
    assert torch.allclose(together, alone, rtol=1e-9, atol=1e-12)


def test_every_parameter_and_the_input_get_gradients(member: Member) -> None:
    block = member.build().double()
    emb_BFD = inputs().requires_grad_()
    member.call(block, emb_BFD).square().sum().backward()
    assert emb_BFD.grad is not None
    assert bool(torch.isfinite(emb_BFD.grad).all())
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None, name


def test_a_seed_repeats_its_weights(member: Member) -> None:
    built: list[dict[str, Tensor]] = []
    for _ in range(2):
        torch.manual_seed(7)
        built.append(member.build().state_dict())
    assert all(torch.equal(built[0][name], built[1][name]) for name in built[0])


def test_it_counts_the_flops_of_its_products(member: Member) -> None:
    block = member.build().double().eval()
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        member.call(block, inputs())
    assert block.matmul_flops() * ROWS == counter.get_total_flops()
