"""What every model must do; members are listed in ``model_cases.py``."""

from __future__ import annotations

import pytest
import torch
from model_cases import CONFIGS, dims_for, inputs_for
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from ziggurat.core.errors import ConfigError
from ziggurat.interactions.block import Block
from ziggurat.models import Model, ModelConfig, ModelDims, build_model
from ziggurat.models.logistic_regression import LogisticRegression

ALL = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def built(config: ModelConfig, dims: ModelDims, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return build_model(config, dims)


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
def test_a_row_depends_on_itself_alone(config: ModelConfig) -> None:
    dims = dims_for(config)
    model = built(config, dims).double()
    dense_BF, emb_BFD = inputs_for(dims, dtype=torch.float64)
    whole = model(dense_BF, emb_BFD)
    for row in range(6):
        part = model(dense_BF[row : row + 1], emb_BFD[row : row + 1])
        torch.testing.assert_close(part[0], whole[row], rtol=1e-12, atol=1e-12)


@ALL
def test_without_dense_features(config: ModelConfig) -> None:
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
    if config.name == "dlrm":
        with pytest.raises(ConfigError, match=r"give only 1\n.*use dcn_v2, deepfm or logistic_regression"):
            build_model(config, dims)
        return
    dense_BF, emb_BFD = inputs_for(dims)
    logits = built(config, dims)(dense_BF, emb_BFD)
    assert not torch.equal(built(config, dims)(dense_BF + 1, emb_BFD), logits)


@ALL
def test_no_features_at_all_are_refused(config: ModelConfig) -> None:
    with pytest.raises(ConfigError, match="no features"):
        build_model(config, dims_for(config, dense=0, features=0))


@ALL
@pytest.mark.parametrize(("dense", "features"), [(3, 4), (0, 4)])
def test_flops_are_torchs_count_and_the_element_wise_part(config: ModelConfig, dense: int, features: int) -> None:
    """Rows of one batch are counted by torch; what it does not count is each block's own element-wise sum."""
    dims = dims_for(config, dense=dense, features=features, tasks=2)
    model = built(config, dims)
    with FlopCounterMode(display=False) as counter:
        model(*inputs_for(dims, rows=6))
    blocks = [block for block in model.children() if isinstance(block, Block)]
    element_wise = sum(block.elementwise_flops() for block in blocks)
    if isinstance(config, LogisticRegression.Config):
        element_wise += dims.features * dims.dim
    assert model.flops() - element_wise == counter.get_total_flops() // 6


@ALL
def test_bfloat16_autocast_stays_close_and_returns_float32(config: ModelConfig) -> None:
    """bf16 keeps 8 bits of mantissa through at most five layers."""
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
    """3 dense features, 4 fields of dim 8, one task: N = 35 numbers laid flat."""
    counts = {name: built(config, dims_for(config)).parameter_count() for name, config in CONFIGS.items()}
    mlp_35_16_8 = 35 * 16 + 16 + 16 * 8 + 8
    assert counts == {
        "logistic_regression": 1 + 3,
        "deepfm": 3 * 8 + (35 + 1) + mlp_35_16_8 + (8 + 1),
        "dlrm": (3 * 8 + 8 + 8 * 8 + 8) + (18 * 16 + 16 + 16 * 8 + 8 + 8 + 1),
        "dcn_v2": 2 * (35 * 35 + 35) + mlp_35_16_8 + (8 + 1),
        "dcn_v2-parallel": 2 * (35 * 35 + 35) + mlp_35_16_8 + (35 + 8 + 1),
        "dcn_v2-low-rank": 2 * (2 * 35 * 3 + 35) + mlp_35_16_8 + (8 + 1),
    }


@pytest.mark.parametrize("name", ["deepfm", "dcn_v2"])
def test_compiled_model_gives_the_same_logits(name: str) -> None:
    """Traced and differentiated whole by the compiler's front end, without graph breaks."""
    config = CONFIGS[name]
    dims = dims_for(config)
    model, inputs = built(config, dims), inputs_for(dims)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-6, atol=1e-6)
    compiled(*inputs).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
