"""Easy mistakes in an implementation of a DHEN layer, one test each: every wrong variant fails here.

Shape legend: B rows, F fields in, F' fields out, D embedding dim.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ziggurat.interactions.block import Block
from ziggurat.interactions.factorization_machine import FactorizationMachine
from ziggurat.interactions.field_blocks.composable import ComposableBlock
from ziggurat.interactions.field_blocks.convolution import Convolution
from ziggurat.interactions.field_blocks.ensemble import Ensemble
from ziggurat.interactions.field_blocks.factorization_machine_block import FactorizationMachineBlock
from ziggurat.interactions.field_blocks.flat_mlp import FlatMLP
from ziggurat.interactions.field_blocks.gram_cross import GramCross
from ziggurat.interactions.field_blocks.linear_compression import LinearCompression
from ziggurat.interactions.field_blocks.mask_block import MaskedFields
from ziggurat.interactions.field_blocks.pairs_block import PairsBlock
from ziggurat.interactions.field_blocks.self_attention import SelfAttention
from ziggurat.interactions.mlp import MLP
from ziggurat.models import ModelDims
from ziggurat.models.dhen import DHEN

ROWS, FIELDS, DIM, OUTPUTS = 4, 5, 6, 3

SMALL = MLP.Config(hidden=(10,))
BLOCKS: dict[str, ComposableBlock] = {
    config.name: config
    for config in (
        FactorizationMachineBlock.Config(outputs=OUTPUTS, rank=2, mlp=SMALL),
        LinearCompression.Config(outputs=OUTPUTS),
        PairsBlock.Config(outputs=OUTPUTS, mlp=SMALL),
        GramCross.Config(outputs=OUTPUTS),
        SelfAttention.Config(outputs=OUTPUTS, feed_forward=8),
        Convolution.Config(outputs=OUTPUTS),
        MaskedFields.Config(outputs=OUTPUTS),
        FlatMLP.Config(outputs=OUTPUTS, mlp=SMALL),
    )
}
SHUFFLE = torch.tensor([3, 0, 4, 1, 2])


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation() -> Tensor:
    return torch.linalg.qr(draw(DIM, DIM, seed=2))[0]


def block(name: str) -> Block:
    torch.manual_seed(0)
    return BLOCKS[name].build(FIELDS, DIM).double()


def ensemble(blocks: tuple[ComposableBlock, ...], features: int = FIELDS, **settings: Any) -> Ensemble:
    torch.manual_seed(0)
    return Ensemble(Ensemble.Config(blocks=blocks, **settings), features, DIM).double()


def close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", BLOCKS)
def test_every_module_emits_its_fields_by_dims_the_flat_ones_too(name: str) -> None:
    """F, F' and D all differ, so a transposed or flat output would have another shape."""
    made = block(name)
    assert made(draw(ROWS, FIELDS, DIM)).shape == (ROWS, OUTPUTS, DIM)
    assert made.out_features == OUTPUTS


@pytest.mark.parametrize("name", BLOCKS)
def test_every_module_takes_more_fields_than_came_in(name: str) -> None:
    """A flat output is projected to any number of fields, not cut to what fits."""
    config = BLOCKS[name].model_copy(update={"outputs": 11})
    assert config.build(FIELDS, DIM).double()(draw(ROWS, FIELDS, DIM)).shape == (ROWS, 11, DIM)


@pytest.mark.parametrize("name", ["factorization_machine", "dot_product"])
def test_products_are_between_fields_not_between_dims(name: str) -> None:
    """⟨x_i, x_j⟩ is invariant under a rotation of the dims; products summed over the fields are not."""
    inputs, made = draw(ROWS, FIELDS, DIM), block(name)
    close(made(inputs @ rotation()), made(inputs))


def test_the_linear_module_mixes_fields() -> None:
    inputs, made = draw(ROWS, FIELDS, DIM), block("linear")
    close(made(inputs @ rotation()), made(inputs) @ rotation())


def test_cross_sums_over_fields_whose_order_means_nothing() -> None:
    """Xᵀ X of a (fields, dims) matrix is D×D and independent of the order of fields; X Xᵀ would depend on it."""
    inputs, made = draw(ROWS, FIELDS, DIM), block("cross")
    close(made(inputs[:, SHUFFLE]), made(inputs))


def test_cross_has_no_skip_of_its_own() -> None:
    """The output without its bias has degree two alone: it is even in X and quadruples at 2 X; x₀ ⊙ (…) + x is not."""
    inputs, made = draw(ROWS, FIELDS, DIM), block("cross")
    assert isinstance(made, GramCross)
    nn.init.uniform_(made.bias_FD)
    close(made(-inputs), made(inputs))
    close(made(2 * inputs) - made.bias_FD, 4 * (made(inputs) - made.bias_FD))
    close(made(torch.zeros_like(inputs)), made.bias_FD.expand(ROWS, -1, -1))


def test_attention_looks_from_field_to_field() -> None:
    """The fields are the tokens, so attention without a mixture after it commutes with a permutation of them."""
    torch.manual_seed(0)
    made = SelfAttention(SelfAttention.Config(), FIELDS, DIM).double()
    inputs = draw(ROWS, FIELDS, DIM)
    close(made(inputs[:, SHUFFLE]), made(inputs)[:, SHUFFLE])


def test_convolution_slides_along_the_dims() -> None:
    """A pattern moved by one dim comes out moved by one dim, where no end of the row is near."""
    inputs, made = torch.zeros(1, FIELDS, DIM, dtype=torch.float64), block("convolution")
    inputs[:, :, 2:4] = draw(1, FIELDS, 2)
    moved = inputs.roll(1, dims=2)
    close(made(moved)[:, :, 2:], made(inputs)[:, :, 1:-1])


def test_masked_fields_norm_each_field_over_its_dims() -> None:
    """Fields a thousand times as long leave the masked side as it was, if the mask is held still."""
    made = block("mask")
    assert isinstance(made, MaskedFields)
    nn.init.zeros_(made.block.mask[0].weight)  # pyright: ignore[reportArgumentType]
    inputs = draw(ROWS, FIELDS, DIM)
    longer = inputs.clone()
    longer[:, 1] *= 1000
    torch.testing.assert_close(made(longer), made(inputs), rtol=1e-3, atol=1e-3)


def layer_of_silent_blocks(features: int) -> Ensemble:
    layer = ensemble((BLOCKS["linear"], BLOCKS["linear"]), features)
    for each in layer.blocks:
        for parameter in each.parameters():
            nn.init.zeros_(parameter)
    return layer


def test_the_short_cut_is_the_identity_where_counts_match() -> None:
    layer = layer_of_silent_blocks(2 * OUTPUTS)
    inputs = draw(ROWS, 2 * OUTPUTS, DIM)
    assert torch.equal(layer(inputs), nn.functional.layer_norm(inputs, (DIM,)))
    assert not [name for name, _ in layer.named_parameters() if name.startswith("shortcut")]


def test_the_short_cut_is_linear_over_the_fields_where_counts_differ() -> None:
    layer = layer_of_silent_blocks(FIELDS)
    inputs = draw(ROWS, FIELDS, DIM)
    (weight,) = (parameter for name, parameter in layer.named_parameters() if name.startswith("shortcut"))
    assert weight.shape == (2 * OUTPUTS, FIELDS)
    close(layer(inputs), nn.functional.layer_norm(torch.einsum("of,bfd->bod", weight, inputs), (DIM,)))


def test_without_short_cut_only_the_blocks_speak() -> None:
    layer = ensemble((BLOCKS["linear"], BLOCKS["mlp"]), shortcut=False)
    inputs = draw(ROWS, FIELDS, DIM)
    outputs = torch.cat([each(inputs) for each in layer.blocks], dim=1)
    close(layer(inputs), nn.functional.layer_norm(outputs, (DIM,)))


def test_the_norm_comes_after_the_short_cut_and_stands_over_the_dims() -> None:
    """Every field of a layer's output has mean 0 and variance 1, also where the input is long."""
    state = 100 * draw(ROWS, FIELDS, DIM)
    for combine, blocks in (("concat", ("cross", "linear")), ("sum", ("mlp", "linear")), ("weighted", ("mask", "mlp"))):
        layer = ensemble(tuple(BLOCKS[name] for name in blocks), combine=combine)
        outputs = layer(state)
        close(outputs.mean(2), torch.zeros_like(outputs.mean(2)))
        variance = outputs.var(2, correction=0)
        torch.testing.assert_close(variance, torch.ones_like(variance), rtol=1e-2, atol=0)


@pytest.mark.parametrize("combine", ["concat", "sum", "weighted"])
def test_combine_does_what_its_name_says(combine: str) -> None:
    """Before the norm, outputs are concatenated, added, or added with learned positive weights that sum to one."""
    layer = ensemble((BLOCKS["linear"], BLOCKS["mlp"], BLOCKS["cross"]), combine=combine, shortcut=False)
    layer.norm = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    inputs = draw(ROWS, FIELDS, DIM)
    first, second, third = (each(inputs) for each in layer.blocks)
    if combine == "concat":
        assert layer.out_features == 3 * OUTPUTS
        assert torch.equal(layer(inputs), torch.cat([first, second, third], dim=1))
        return
    assert layer.out_features == OUTPUTS
    if combine == "sum":
        assert layer.weights_M is None
        close(layer(inputs), first + second + third)
        return
    assert layer.weights_M is not None
    close(layer(inputs), (first + second + third) / 3)
    with torch.no_grad():
        layer.weights_M.copy_(torch.tensor([0.0, 2.0, 3.0], dtype=torch.float64).log1p())  # e^a = 1, 3, 4
    close(layer(inputs), (first + 3 * second + 4 * third) / 8)
    layer(inputs).square().sum().backward()
    assert layer.weights_M.grad is not None
    assert (layer.weights_M.grad != 0).all()


def test_stacked_layers_have_their_own_weights_and_read_the_layer_before() -> None:
    """One config stacked three times gives layers with weights of their own, each as wide as the output before it."""
    torch.manual_seed(0)
    config = DHEN.Config(layer=Ensemble.Config(blocks=(BLOCKS["linear"], BLOCKS["mlp"])), layers=3)
    model = config.build(ModelDims(0, FIELDS, DIM)).double()
    assert isinstance(model, DHEN)
    named = dict(model.named_parameters())
    weights = [named[f"stack.layers.{i}.blocks.0.mixture.weight"] for i in range(3)]
    assert [tuple(weight.shape) for weight in weights] == [(OUTPUTS, FIELDS), (OUTPUTS, 6), (OUTPUTS, 6)]
    assert not torch.equal(weights[1], weights[2])
    state = inputs = draw(ROWS, FIELDS, DIM)
    for layer in model.stack.layers:
        state = layer(state)
    assert torch.equal(model(torch.empty(ROWS, 0), inputs), model.head(state.flatten(1)))


def test_pairs_add_the_products_of_all_pairs_of_fields_to_each_logit() -> None:
    """Those of the dense vector too, each pair once, beside whatever the stack and the head compute."""
    torch.manual_seed(0)
    plain = DHEN.Config(layer=Ensemble.Config(blocks=(BLOCKS["linear"],)), layers=1)
    model, without = (
        config.build(ModelDims(2, FIELDS, DIM, tasks=2)).double()
        for config in (plain.model_copy(update={"pairs": True}), plain)
    )
    without.load_state_dict(model.state_dict())
    assert isinstance(model, DHEN)
    assert model.bottom is not None
    dense, inputs = draw(ROWS, 2), draw(ROWS, FIELDS, DIM, seed=3)
    fields = torch.cat([model.bottom(dense), inputs], dim=1)
    products = sum((fields[:, i] * fields[:, j]).sum(1) for i in range(FIELDS + 1) for j in range(i))
    assert isinstance(products, Tensor)
    close(model(dense, inputs), without(dense, inputs) + products[:, None])
    assert model.flops() == without.flops() + FactorizationMachine(FIELDS + 1, DIM).flops()
