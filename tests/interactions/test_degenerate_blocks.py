"""Settings in which a block must equal another block, or a value that one line of arithmetic gives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ziggurat.core.config import parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.interactions.cross import Cross
from ziggurat.interactions.dense_embedding import DenseEmbedding
from ziggurat.interactions.dot_product import DotProduct
from ziggurat.interactions.factorization_machine import FactorizationMachine
from ziggurat.interactions.linear import Linear
from ziggurat.interactions.mlp import MLP, Activation
from ziggurat.interactions.numeric_embedding import NumericEmbedding


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("rank", [None, 3])
def test_cross_with_zero_weights_is_the_identity(rank: int | None) -> None:
    block = Cross(3, 4, layers=3, rank=rank).double()
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    inputs = random(5, 3, 4)
    assert torch.equal(block(inputs), inputs)


def test_cross_without_layers_is_the_identity() -> None:
    inputs = random(5, 3, 4)
    assert torch.equal(Cross(3, 4, layers=0)(inputs), inputs)


def test_cross_with_unit_bias_raises_the_degree() -> None:
    """W = 0 and b = 1 give x₁ = 2x₀ for every x₀; W = I and b = 0 give x₁ = x₀² + x₀."""
    block = Cross(2, 2, layers=1).double()
    affine = block.layers[0]
    inputs = random(4, 2, 2)
    nn.init.zeros_(affine.weight)
    nn.init.ones_(affine.bias)
    torch.testing.assert_close(block(inputs), 2 * inputs, rtol=0, atol=0)
    nn.init.eye_(affine.weight)
    nn.init.zeros_(affine.bias)
    torch.testing.assert_close(block(inputs), inputs**2 + inputs, rtol=1e-15, atol=1e-15)


def test_low_rank_cross_with_full_rank_factors_is_the_full_cross() -> None:
    torch.manual_seed(0)
    full = Cross(3, 2, layers=2).double()
    low = Cross(3, 2, layers=2, rank=6).double()
    with torch.no_grad():
        for affine, (v, u) in zip(full.layers, low.layers, strict=True):
            left, values, right = torch.linalg.svd(affine.weight)
            v.weight.copy_(right)
            u.weight.copy_(left * values)
            u.bias.copy_(affine.bias)
    inputs = random(5, 3, 2)
    torch.testing.assert_close(low(inputs), full(inputs), rtol=1e-11, atol=1e-11)


@settings(max_examples=25, deadline=None)
@given(features=st.integers(2, 7), dim=st.integers(1, 6), seed=st.integers(0, 1000))
def test_fm_summed_over_dims_is_the_sum_of_all_dot_products(features: int, dim: int, seed: int) -> None:
    inputs = random(3, features, dim, seed=seed)
    fm = FactorizationMachine(features, dim)(inputs).sum((1, 2))
    dots = DotProduct(features, dim)(inputs).sum(1)
    torch.testing.assert_close(fm, dots, rtol=1e-10, atol=1e-10)


def test_fm_of_one_field_is_zero() -> None:
    assert torch.equal(FactorizationMachine(1, 3)(torch.full((2, 1, 3), 1.7)), torch.zeros(2, 1, 3))


def test_dot_products_come_row_by_row() -> None:
    inputs = torch.tensor([[[1.0, 0.0], [2.0, 3.0], [5.0, 7.0]]])
    assert DotProduct(3, 2)(inputs).tolist() == [[2.0, 5.0, 31.0]]


def test_linear_with_unit_weights_sums() -> None:
    block = Linear(6, 1).double()
    nn.init.ones_(block.layer.weight)
    nn.init.constant_(block.layer.bias, 0.5)
    inputs = random(4, 3, 2)
    torch.testing.assert_close(block(inputs)[:, 0], inputs.sum((1, 2)) + 0.5, rtol=1e-12, atol=1e-12)


def test_mlp_without_hidden_layers_and_outputs_passes_its_input_on() -> None:
    block = MLP(6, MLP.Config(hidden=()))
    inputs = random(4, 3, 2)
    assert torch.equal(block(inputs), inputs.flatten(1))
    assert (block.out_features, block.flops(), list(block.parameters())) == (6, 0, [])


def test_mlp_without_output_layer_ends_in_its_activation() -> None:
    torch.manual_seed(0)
    block = MLP(6, MLP.Config(hidden=(8,))).double()
    outputs = block(random(20, 6))
    assert block.out_features == 8
    assert (outputs >= 0).all()
    assert (outputs == 0).any()


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        ("relu", [0.0, 0.0, 2.0]),
        ("leaky_relu", [-0.01, 0.0, 2.0]),
        ("gelu", [-0.15865525, 0.0, 1.9544997]),
        ("silu", [-0.26894142, 0.0, 1.7615942]),
        ("tanh", [-0.7615942, 0.0, 0.9640276]),
    ],
)
def test_activation_has_the_values_of_its_formula(activation: Activation, expected: list[float]) -> None:
    block = MLP(1, MLP.Config(hidden=(1,), activation=activation))
    nn.init.ones_(block.layers[0].weight)
    nn.init.zeros_(block.layers[0].bias)
    outputs = block(torch.tensor([[-1.0], [0.0], [2.0]]))
    torch.testing.assert_close(outputs[:, 0], torch.tensor(expected), rtol=1e-6, atol=1e-7)


def test_dropout_acts_in_training_only_and_keeps_the_mean() -> None:
    block = MLP(1, MLP.Config(hidden=(4000,), dropout=0.25))
    nn.init.ones_(block.layers[0].weight)
    nn.init.zeros_(block.layers[0].bias)
    ones = torch.ones(1, 1)
    torch.manual_seed(0)
    trained = block(ones)
    assert trained.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    # The fraction of zeros among 4,000 draws has a standard deviation of 0.7 %.
    assert (trained == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert torch.equal(block.eval()(ones), torch.ones(1, 4000))


def test_batch_norm_normalises_over_rows_and_layer_norm_within_a_row() -> None:
    torch.manual_seed(0)
    inputs = random(64, 5)
    for norm, dimension in (("batch", 0), ("layer", 1)):
        block = MLP(5, MLP.Config(hidden=(16,), norm=norm)).double()
        normalised = block.layers[:2](inputs)
        means = normalised.mean(dimension)
        stds = normalised.std(dimension, correction=0)
        torch.testing.assert_close(means, torch.zeros_like(means), rtol=0, atol=1e-9)
        torch.testing.assert_close(stds, torch.ones_like(stds), rtol=1e-3, atol=0)


def test_dense_embedding_without_hidden_layers_is_one_linear_map() -> None:
    block = DenseEmbedding(3, 2, 2, MLP.Config(hidden=())).double()
    layer = block.mlp.layers[0]
    inputs = random(4, 3)
    expected = (inputs @ layer.weight.T + layer.bias).reshape(4, 2, 2)
    torch.testing.assert_close(block(inputs), expected, rtol=1e-12, atol=1e-12)


def test_numeric_embedding_of_zero_is_zero_and_scales() -> None:
    block = NumericEmbedding(2, 3)
    assert torch.equal(block(torch.zeros(1, 2)), torch.zeros(1, 2, 3))
    assert torch.equal(
        block(torch.tensor([[2.0, -1.0]]))[0], torch.stack([2 * block.vectors_FD[0], -block.vectors_FD[1]])
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hidden": [0]}, "hidden.0"),
        ({"dropout": 1.0}, "dropout"),
        ({"activation": "rely"}, "activation"),
        ({"hiden": [3]}, "did you mean 'hidden'"),
    ],
)
def test_a_bad_mlp_config_is_explained(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config(MLP.Config, values)
