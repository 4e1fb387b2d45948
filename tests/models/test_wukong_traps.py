"""Mistakes that re-implementations of Wukong make, one test each: every wrong variant fails here.

Shape legend: B rows, F fields, D embedding dim, K rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from model_cases import SMALL_HEAD
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ziggurat.interactions.field_blocks.ensemble import Ensemble
from ziggurat.interactions.field_blocks.factorization_machine_block import FactorizationMachineBlock
from ziggurat.interactions.field_blocks.field_products import FieldProducts
from ziggurat.interactions.field_blocks.linear_compression import LinearCompression
from ziggurat.interactions.mlp import MLP
from ziggurat.models import ModelDims
from ziggurat.models.dhen import DHEN
from ziggurat.models.wukong import Wukong

FIELDS, DIM, DENSE, ROWS = 7, 8, 3, 6
FM_OUTPUTS, LINEAR_OUTPUTS, RANK = 3, 2, 4


def wukong(features: int = FIELDS - 1, dense: int = DENSE, **settings: Any) -> Wukong:
    """Returns a Wukong in double precision, from seed 0; the dense features are the seventh field."""
    given: dict[str, Any] = {
        "layers": 3,
        "fm_outputs": FM_OUTPUTS,
        "linear_outputs": LINEAR_OUTPUTS,
        "rank": RANK,
        "fm_mlp": MLP.Config(hidden=(10,)),
        "head": SMALL_HEAD,
    }
    torch.manual_seed(0)
    model = Wukong.Config(**(given | settings)).build(ModelDims(dense, features, DIM)).double()
    assert isinstance(model, Wukong)
    return model


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layers_of(model: Wukong | DHEN) -> list[Ensemble]:
    return [layer for layer in model.stack.layers if isinstance(layer, Ensemble)]


def blocks_of(layer: Ensemble) -> tuple[FactorizationMachineBlock, LinearCompression]:
    machine, linear = layer.blocks
    assert isinstance(machine, FactorizationMachineBlock)
    assert isinstance(linear, LinearCompression)
    return machine, linear


def silence(layer: Ensemble) -> None:
    """Makes both blocks emit zeros."""
    machine, linear = blocks_of(layer)
    for parameter in (machine.mlp.layers[-1].weight, machine.mlp.layers[-1].bias, linear.mixture.weight):
        assert isinstance(parameter, Tensor)
        nn.init.zeros_(parameter)


def test_the_linear_compression_mixes_fields_and_never_dims() -> None:
    """W (X R) = (W X) R for every D×D matrix R.

    A general map of the flattened F·D numbers commutes only with multiples of the identity.
    """
    inputs, rotation = draw(ROWS, FIELDS, DIM), draw(DIM, DIM, seed=2)
    first, second, *_ = layers_of(wukong())
    assert isinstance(first.shortcut, LinearCompression)
    for mixture in (blocks_of(first)[1], first.shortcut):
        torch.testing.assert_close(mixture(inputs @ rotation), mixture(inputs) @ rotation, rtol=1e-12, atol=1e-12)
    assert blocks_of(first)[1].mixture.weight.shape == (LINEAR_OUTPUTS, FIELDS)
    assert blocks_of(second)[1].mixture.weight.shape == (LINEAR_OUTPUTS, FM_OUTPUTS + LINEAR_OUTPUTS)


def test_the_linear_compression_has_no_bias() -> None:
    for layer in layers_of(wukong()):
        linear = blocks_of(layer)[1]
        fields = linear.mixture.in_features
        assert [name for name, _ in linear.named_parameters()] == ["mixture.weight"]
        assert torch.equal(linear(torch.zeros(1, fields, DIM).double()), torch.zeros(1, LINEAR_OUTPUTS, DIM).double())


def test_every_layer_emits_n_f_plus_n_l_fields_and_none_goes_back_to_n() -> None:
    state, counts = draw(ROWS, FIELDS, DIM), list[int]()
    for layer in layers_of(wukong()):
        state = layer(state)
        counts.append(state.shape[1])
    assert counts == [FM_OUTPUTS + LINEAR_OUTPUTS] * 3


def test_layer_norm_covers_the_dims_of_each_field() -> None:
    """Every field of every layer has mean 0 and variance 1 over its own dims, because fresh scales are 1 and shifts 0.

    The fields that enter the norm differ in length by a factor of a thousand.
    """
    state = draw(ROWS, FIELDS, DIM)
    for layer in layers_of(wukong()):
        with torch.no_grad():
            blocks_of(layer)[1].mixture.weight[0] *= 1000
        state = layer(state)
        assert layer.norm.normalized_shape == (DIM,)
        torch.testing.assert_close(state.mean(2), torch.zeros_like(state.mean(2)), rtol=0, atol=1e-12)
        variance = state.var(2, correction=0)
        torch.testing.assert_close(variance, torch.ones_like(variance), rtol=1e-2, atol=0)


def test_no_row_sees_another_row_of_its_batch_while_training() -> None:
    """Batch norm inside the block would give every row the statistics of the others."""
    model = wukong().train()
    dense, emb = draw(ROWS, DENSE), draw(ROWS, FIELDS - 1, DIM)
    other_dense, other_emb = dense.clone(), emb.clone()
    other_dense[1:] *= 100
    other_emb[1:] += 50
    torch.testing.assert_close(model(dense, emb)[0], model(other_dense, other_emb)[0], rtol=1e-6, atol=1e-6)
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())  # pyright: ignore[reportPrivateUsage]
    assert not list(model.buffers())


def test_training_and_evaluation_differ_by_dropout_alone() -> None:
    """Without dropout the modes agree to the bit. With dropout, evaluation equals the model without it."""
    inputs = draw(ROWS, DENSE), draw(ROWS, FIELDS - 1, DIM)
    plain = wukong()
    dropping = wukong(fm_mlp=MLP.Config(hidden=(10,), dropout=0.5))
    assert torch.equal(plain.train()(*inputs), plain.eval()(*inputs))
    assert torch.equal(dropping.eval()(*inputs), plain(*inputs))
    dropping.train()
    assert not torch.equal(dropping(*inputs), dropping(*inputs))
    assert not list(dropping.buffers())  # running statistics


def test_dropout_zeroes_its_share_of_the_blocks_hidden_units() -> None:
    """A quarter of 4,000 positive units become 0; the rest grow by 1/0.75. The standard deviation is 0.7 %."""
    torch.manual_seed(0)
    config = FactorizationMachineBlock.Config(outputs=1, rank=2, mlp=MLP.Config(hidden=(4000,), dropout=0.25))
    first, *others = list(FactorizationMachineBlock(config, FIELDS, DIM).mlp.layers)[:-1]
    assert isinstance(first, nn.Linear)
    nn.init.zeros_(first.weight)
    nn.init.ones_(first.bias)
    outputs = nn.Sequential(first, *others)(torch.ones(1, first.in_features))
    assert outputs.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert (outputs == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("fields", [4, 39, 256])
@pytest.mark.parametrize("rank", [2, 24])
@pytest.mark.parametrize("dim", [4, 64])
def test_the_static_matrix_starts_without_blowing_the_products_up(fields: int, rank: int, dim: int) -> None:
    """X Xᵀ Y starts as large as X Xᵀ, whatever n, k and d are.

    X Xᵀ is about d on the diagonal and about √d off it, so the root mean square is √(d²/n + d). A Y of standard
    deviation 1 would make it √n times as large.
    """
    torch.manual_seed(0)
    block = FieldProducts(fields, dim, rank).double()
    outputs = block(draw(200, fields, dim))
    expected = math.sqrt((dim**2 + 2 * dim) / fields + dim * (fields - 1) / fields)
    # Y is drawn once: the root mean square of its n·k ≥ 8 numbers deviates by a quarter at most.
    assert outputs.square().mean().sqrt().item() == pytest.approx(expected, rel=0.5)


def test_the_products_associate_the_cheap_way_and_the_value_is_the_same() -> None:
    """X (Xᵀ Y) = (X Xᵀ) Y at 4·n·k·d FLOPs: twice the fields cost twice as much, not four times."""
    costs: list[int] = []
    for fields in (32, 64):
        block = FieldProducts(fields, DIM, RANK).double()
        inputs = draw(ROWS, fields, DIM)
        with FlopCounterMode(display=False) as counter:
            outputs = block(inputs)
        assert block.mixtures_FK is not None
        expected = torch.stack([(row @ row.T) @ block.mixtures_FK for row in inputs])
        torch.testing.assert_close(outputs, expected, rtol=1e-11, atol=1e-11)
        costs.append(counter.get_total_flops() // ROWS)
    assert costs == [4 * 32 * RANK * DIM, 4 * 64 * RANK * DIM]


def test_layer_i_holds_every_degree_from_1_to_2_to_the_i_and_none_above() -> None:
    """Without norms, activations and biases a layer is a polynomial of its input: X·t gives Σ_p c_p t^p."""
    model = wukong(fm_mlp=MLP.Config(hidden=()))
    for layer in layers_of(model):
        machine, _ = blocks_of(layer)
        layer.norm, machine.norm = nn.Identity(), nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
        nn.init.zeros_(machine.mlp.layers[-1].bias)  # pyright: ignore[reportArgumentType]
    inputs = 0.5 * draw(ROWS, FIELDS, DIM)
    for depth, layer_count in ((1, 1), (2, 2), (3, 3)):
        highest = 2**depth
        scales = torch.linspace(-1, 1, highest + 4, dtype=torch.float64)
        outputs: list[Tensor] = []
        for scale in scales:
            state = inputs * scale
            for layer in layers_of(model)[:layer_count]:
                state = layer(state)
            outputs.append(state.flatten())
        powers = torch.linalg.vander(scales)
        coefficients = torch.linalg.solve(powers, torch.stack(outputs)).norm(dim=1)
        share = (coefficients / coefficients.max()).tolist()
        assert share[0] < 1e-9
        assert min(share[1 : highest + 1]) > 1e-6, share
        assert max(share[highest + 1 :]) < 1e-9, share


def test_the_residual_is_compressed_only_where_the_numbers_of_fields_differ() -> None:
    """With silent blocks a layer is LN(shortcut(X)): LN(W X) in the first (7 fields in, 5 out), then LN(X)."""
    first, second, third = layers_of(wukong())
    for layer in (first, second, third):
        silence(layer)
    assert isinstance(first.shortcut, LinearCompression)
    inputs, weight = draw(ROWS, FIELDS, DIM), first.shortcut.mixture.weight
    assert weight.shape == (FM_OUTPUTS + LINEAR_OUTPUTS, FIELDS)
    mixed = torch.einsum("of,bfd->bod", weight, inputs)
    torch.testing.assert_close(first(inputs), nn.functional.layer_norm(mixed, (DIM,)), rtol=1e-12, atol=1e-12)
    for layer in (second, third):
        assert torch.equal(layer(mixed), nn.functional.layer_norm(mixed, (DIM,)))
        assert not [name for name, _ in layer.named_parameters() if name.startswith("shortcut")]


def written_out(weights: Mapping[str, Tensor], dense: Tensor, emb: Tensor) -> Tensor:
    """Returns the logits of one row, computed from the equations with the weights by name, without torch's layers."""

    def affine(name: str, row: Tensor) -> Tensor:
        return weights[f"{name}.weight"] @ row + weights[f"{name}.bias"]

    def normed(name: str, rows: Tensor) -> Tensor:
        centred = rows - rows.mean(-1, keepdim=True)
        variance = (centred**2).mean(-1, keepdim=True)
        return centred / (variance + 1e-5).sqrt() * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    vector = affine("bottom.mlp.layers.2", affine("bottom.mlp.layers.0", dense).clamp(min=0))
    state_FD = torch.cat([vector[None], emb])
    for i in range(3):
        layer = f"stack.layers.{i}"
        gram = torch.stack([torch.stack([(a * b).sum() for b in state_FD]) for a in state_FD])
        machine = f"{layer}.blocks.0"
        flat = normed(f"{machine}.norm", (gram @ weights[f"{machine}.products.mixtures_FK"]).reshape(-1))
        hidden = affine(f"{machine}.mlp.layers.0", flat).clamp(min=0)
        fmb = affine(f"{machine}.mlp.layers.2", hidden).reshape(FM_OUTPUTS, DIM)
        lcb = weights[f"{layer}.blocks.1.mixture.weight"] @ state_FD
        residual = weights[f"{layer}.shortcut.mixture.weight"] @ state_FD if i == 0 else state_FD
        state_FD = normed(f"{layer}.norm", torch.cat([fmb, lcb]) + residual)
    state = state_FD.reshape(-1)
    for name in ("head.bottom.layers.0", "head.bottom.layers.2"):
        state = affine(name, state).clamp(min=0)
    return affine("head.towers.towers.0.layers.0", state)


def test_the_model_equals_the_equations_written_out() -> None:
    model = wukong()
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):  # the effect of fresh norm weights, all 1, would not show
            nn.init.uniform_(parameter, 0.5, 1.5)
    dense, emb = draw(ROWS, DENSE), draw(ROWS, FIELDS - 1, DIM)
    weights = dict(model.named_parameters())
    expected = torch.stack([written_out(weights, *row) for row in zip(dense, emb, strict=True)])
    torch.testing.assert_close(model(dense, emb), expected, rtol=1e-10, atol=1e-10)


def test_the_model_is_a_dhen_of_its_two_blocks() -> None:
    """The same weights, by the same names, give the same logits and gradients, to the bit."""
    model = wukong()
    mlp = MLP.Config(hidden=(10,))
    blocks = (
        FactorizationMachineBlock.Config(outputs=FM_OUTPUTS, rank=RANK, mlp=mlp),
        LinearCompression.Config(outputs=LINEAR_OUTPUTS),
    )
    config = DHEN.Config(layer=Ensemble.Config(blocks=blocks), layers=3, head=SMALL_HEAD)
    dhen = config.build(model.dims).double()
    dhen.load_state_dict(model.state_dict())
    dense, emb = draw(ROWS, DENSE), draw(ROWS, FIELDS - 1, DIM).requires_grad_()
    assert torch.equal(model(dense, emb), dhen(dense, emb))
    ours, theirs = (torch.autograd.grad(each(dense, emb).sum(), [emb, *each.parameters()]) for each in (model, dhen))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert model.flops() == dhen.flops()
