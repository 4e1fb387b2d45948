"""The contract that every model must satisfy; ``model_cases.py`` lists the models."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from model_cases import CONFIGS, dims_for, inputs_for
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from ziggurat.core.errors import ConfigError
from ziggurat.models import Model, ModelConfig, ModelDims
from ziggurat.models.logistic_regression import LogisticRegression

ALL = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def built(config: ModelConfig, dims: ModelDims, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return config.build(dims)


@ALL
@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_each_row_has_one_float32_logit_per_task(config: ModelConfig, tasks: int) -> None:
    dims = dims_for(config, tasks=tasks)
    logits_BT = built(config, dims)(*inputs_for(dims))
    assert logits_BT.shape == (6, tasks)
    assert logits_BT.dtype == torch.float32


@ALL
def test_gradient_reaches_every_parameter_and_every_input(config: ModelConfig) -> None:
    dims = dims_for(config, tasks=2)
    model = built(config, dims)
    dense_BF, emb_BFD = (tensor.requires_grad_() for tensor in inputs_for(dims, rows=64))
    labels = torch.randint(0, 2, (64, 2), generator=torch.Generator().manual_seed(1)).float()
    F.binary_cross_entropy_with_logits(model(dense_BF, emb_BFD), labels).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    assert dense_BF.grad is not None
    assert emb_BFD.grad is not None
    assert (dense_BF.grad.abs().sum(0) > 0).all()
    assert (emb_BFD.grad.abs().sum((0, 2)) > 0).all()


@ALL
def test_one_seed_gives_one_model(config: ModelConfig) -> None:
    dims = dims_for(config)
    inputs = inputs_for(dims)
    first, second, other = built(config, dims, 7), built(config, dims, 7), built(config, dims, 8)
    assert torch.equal(first(*inputs), second(*inputs))
    if not isinstance(config, LogisticRegression.Config):
        assert not torch.equal(first(*inputs), other(*inputs))


@ALL
def test_a_rows_logits_depend_on_that_row_alone(config: ModelConfig) -> None:
    dims = dims_for(config)
    model = built(config, dims).double()
    dense_BF, emb_BFD = inputs_for(dims, dtype=torch.float64)
    whole = model(dense_BF, emb_BFD)
    for row in range(6):
        part = model(dense_BF[row : row + 1], emb_BFD[row : row + 1])
        torch.testing.assert_close(part[0], whole[row], rtol=1e-12, atol=1e-12)


@ALL
def test_it_works_without_dense_features(config: ModelConfig) -> None:
    dims = dims_for(config, dense=0)
    dense_BF, emb_BFD = inputs_for(dims)
    logits = built(config, dims)(dense_BF, emb_BFD)
    assert torch.isfinite(logits).all()
    changed = emb_BFD.clone()
    changed[:, 1] += 1
    assert not torch.equal(built(config, dims)(dense_BF, changed), logits)


@ALL
def test_without_looked_up_features_works_or_names_a_model_that_does(config: ModelConfig) -> None:
    dims = dims_for(config, features=0)
    refusals = {
        "dlrm": r"give only 1\n.*use dcn_v2, deepfm or logistic_regression",
        "dhen": r"dot_product multiplies pairs of fields, and there is only 1\n.*cross, linear, mlp",
    }
    if config == CONFIGS["dlrm"] or config == CONFIGS["dhen-concat"]:
        with pytest.raises(ConfigError, match=refusals[config.name]):
            config.build(dims)
        return
    dense_BF, emb_BFD = inputs_for(dims)
    logits = built(config, dims)(dense_BF, emb_BFD)
    assert not torch.equal(built(config, dims)(dense_BF + 1, emb_BFD), logits)


@ALL
def test_no_features_at_all_are_refused(config: ModelConfig) -> None:
    with pytest.raises(ConfigError, match="no features"):
        config.build(dims_for(config, dense=0, features=0))


@ALL
@pytest.mark.parametrize(("dense", "features"), [(3, 4), (0, 4)])
def test_flops_are_torchs_count_and_the_element_wise_part(config: ModelConfig, dense: int, features: int) -> None:
    """Torch counts the matrix products; each block counts its own element-wise operations, which torch does not."""
    dims = dims_for(config, dense=dense, features=features, tasks=2)
    model = built(config, dims)
    with FlopCounterMode(display=False) as counter:
        model(*inputs_for(dims, rows=6))
    element_wise = sum(block.elementwise_flops() for block in model.parts())
    if isinstance(config, LogisticRegression.Config):
        element_wise += dims.features * dims.dim
    assert model.flops() - element_wise == counter.get_total_flops() // 6


@ALL
def test_bfloat16_autocast_stays_close_and_returns_float32(config: ModelConfig) -> None:
    """The tolerance allows for bf16's 8 bits of mantissa through at most five layers."""
    dims = dims_for(config)
    model, inputs = built(config, dims), inputs_for(dims)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(*inputs)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, model(*inputs), rtol=0.03, atol=0.03)
    logits.sum().backward()


@ALL
def test_state_dict_round_trip(config: ModelConfig) -> None:
    dims = dims_for(config)
    first, second = built(config, dims, 1), built(config, dims, 2)
    second.load_state_dict(first.state_dict())
    inputs = inputs_for(dims)
    assert torch.equal(first(*inputs), second(*inputs))


def test_parameter_counts_by_hand() -> None:
    """3 dense features, 4 fields of dim 8 and one task make a flattened row of N = 35 numbers."""
    counts = {name: built(config, dims_for(config)).parameter_count() for name, config in CONFIGS.items()}
    mlp_35_16_8 = 35 * 16 + 16 + 16 * 8 + 8
    assert counts == {
        "logistic_regression": 1 + 3,
        "deepfm": 3 * 8 + (35 + 1) + mlp_35_16_8 + (8 + 1),
        "dlrm": (3 * 8 + 8 + 8 * 8 + 8) + (18 * 16 + 16 + 16 * 8 + 8 + 8 + 1),
        "dcn_v2": 2 * (35 * 35 + 35) + mlp_35_16_8 + (8 + 1),
        "dcn_v2-parallel": 2 * (35 * 35 + 35) + mlp_35_16_8 + (35 + 8 + 1),
        "dcn_v2-low-rank": 2 * (2 * 35 * 3 + 35) + mlp_35_16_8 + (8 + 1),
        "fm": 3 * 8 + (35 + 1),
        "dnn": mlp_35_16_8 + (8 + 1),
        # 3 experts and a gate over 35 numbers, a tower of 6 and its logit
        "dnn-mmoe": 3 * (35 * 6 + 6) + 35 * 3 + (6 * 6 + 6 + 7),
        # layer 1: 3 experts and 2 gates of 3 over 35; layer 2: 3 experts and 1 gate over 6
        "dnn-ple": (3 * (35 * 6 + 6) + 2 * 35 * 3) + (3 * (6 * 6 + 6) + 6 * 3) + (6 * 6 + 6 + 7),
        "wide_deep": (35 + 1) + mlp_35_16_8 + (8 + 1),
        # 7 fields: kernels of 7·7 → 6 and 6·7 → 4 maps
        "xdeepfm": 3 * 8 + (35 + 1) + (49 * 6 + 42 * 4) + 10 + mlp_35_16_8 + (8 + 1),
        # queries, keys, values and residual, 4 · 8 · 8 each layer, both layers 8 wide
        "autoint": 3 * 8 + 2 * 4 * 64 + (7 * 8 + 1) + mlp_35_16_8 + (8 + 1),
        "autoint-alone": 3 * 8 + 4 * 64 + (7 * 8 + 1),
        "masknet": 16 + mask(35, 12) + mask(35, 10) + (22 * 16 + 16 + 16 * 8 + 8 + 8 + 1),
        "masknet-serial": 16 + mask(35, 12) + mask(12, 10) + (10 + 1),
        "finalmlp": 2 * 8 + 2 * (8 * 6 + 6 + 6 * 35 + 35) + 2 * mlp_35_16_8 + (8 + 1 + 8 + 2 * 4 * 4),
        "finalmlp-row": 2 * (35 * 6 + 6 + 6 * 35 + 35) + mlp_35_16_8 + (35 * 6 + 6) + (8 + 1 + 6 + 8 * 6),
        "finalmlp-ungated": mlp_35_16_8 + (35 * 6 + 6) + (8 + 1 + 6 + 8 * 6),
        # 5 fields in, 5 out: the shortcuts are identities
        "wukong": bottom(1) + 2 * wukong_layer(5, 2, 3, linear=2 * 5) + head(5 * 8),
        # 5 fields in, 4 out: the first shortcut is a mixture
        "wukong-full": bottom(1)
        + (5 * 4 + wukong_layer(5, 5, 2, linear=2 * 5))
        + 2 * wukong_layer(4, 4, 2, linear=2 * 4)
        + head(4 * 8),
        # 6 fields in, 3 out; the mixtures from 2 compressed fields
        "wukong-attentive": bottom(2)
        + (6 * 2 + (2 * 8 * 16 + 16 + 16 * 8 + 8 + 8 * 12 + 12))
        + (wukong_layer(6, 2, 3, linear=6 * 3, hidden=(256,)) - 6 * 2)
        + head(3 * 8),
        "dhen": bottom(1) + dhen_layer(5) + dhen_layer(4) + head(4 * 8),
        "dhen-concat": bottom(1) + dhen_concat_layer(5) + dhen_concat_layer(19) + mmoe_head(19 * 8),
        # a mixture of 5 fields to 4, the shortcut, the norm; products of pairs have no weights
        "dhen-pairs": bottom(1) + (5 * 4 + 5 * 4 + 16) + head(4 * 8),
    }


def stacked(inputs: int, *widths: int) -> int:
    """Returns the number of weights and biases in a stack of linear layers."""
    return sum(a * b + b for a, b in pairwise((inputs, *widths)))


def mask(inputs: int, outputs: int) -> int:
    """Counts a mask block over a row of 35 numbers: the mask's two layers, the hidden layer without bias, its norm."""
    return stacked(35, 2 * inputs, inputs) + inputs * outputs + 2 * outputs


def bottom(vectors: int) -> int:
    return stacked(3, 64, 8 * vectors)


def head(inputs: int) -> int:
    return stacked(inputs, 16, 8, 1)


def wukong_layer(fields: int, rank: int, outputs: int, linear: int, hidden: tuple[int, ...] = (16, 8)) -> int:
    """Counts the mixtures (none for the full form), two norms, the block's MLP and the other linear weights."""
    products = fields * rank
    mixtures = products if rank < fields else 0
    return mixtures + 2 * products + stacked(products, *hidden, outputs * 8) + linear + 2 * 8


def dhen_layer(fields: int) -> int:
    """Counts attention to 4 fields, a mixture to 4, a convolution of 3 taps to 4, 3 scalars, the shortcut, the norm."""
    attention = stacked(8, 24) + stacked(8, 8) + 16 + stacked(8, 8, 8) + 16 + fields * 4
    shortcut = 0 if fields == 4 else fields * 4
    return attention + fields * 4 + (4 * fields * 3 + 4) + 3 + shortcut + 16


def dhen_concat_layer(fields: int) -> int:
    """Counts 3 fields from a factorization machine of rank 16, 8 from pairs and 8 from a mixture."""
    machine = fields * 16 + 2 * fields * 16 + stacked(fields * 16, 16, 8, 24)
    pairs = stacked(fields * (fields - 1) // 2, 256, 64)
    return machine + pairs + fields * 8 + (0 if fields == 19 else fields * 19) + 16


def mmoe_head(inputs: int) -> int:
    return 2 * stacked(inputs, 6) + inputs * 2 + stacked(6, 6, 1)


@pytest.mark.parametrize("name", ["deepfm", "dcn_v2", "wukong", "dhen-concat"])
def test_compiled_model_gives_the_same_logits(name: str) -> None:
    """The compiler's front end traces and differentiates the whole model without graph breaks."""
    config = CONFIGS[name]
    dims = dims_for(config)
    model, inputs = built(config, dims), inputs_for(dims)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-6, atol=1e-6)
    compiled(*inputs).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
