"""The contract of dense optimizers, tested for every case in ``dense_cases.py``."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from dense_cases import CASES, DenseCase, small_model, train
from torch import nn

from ziggurat.core.config import Config, parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.optim.dense import DenseOptimizerConfig
from ziggurat.optim.torch_optimizers import SGD, AdamW

ALL = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters())


@pytest.mark.parametrize("case", [case for case in CASES if case.torch is not None], ids=lambda case: case.name)
def test_equals_torchs_own_optimizer(case: DenseCase) -> None:
    """The tolerance of 1e-5 covers the different rounding of fused and plain kernels over 30 steps."""
    assert case.torch is not None
    ours, theirs = small_model(), small_model()
    train(ours, case.config.build(parameters(ours)), 0, 30)
    train(theirs, case.torch(list(theirs.parameters())), 0, 30)
    for mine, reference in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-6)


@ALL
def test_resuming_halfway_equals_training_through(case: DenseCase) -> None:
    whole = small_model()
    straight = train(whole, case.config.build(parameters(whole)), 0, 20)

    first = small_model()
    optimizer = case.config.build(parameters(first))
    losses = train(first, optimizer, 0, 10)
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second = small_model()
    second.load_state_dict(saved["model"])
    resumed = case.config.build(parameters(second))
    resumed.load_state_dict(saved["optimizer"])
    losses += train(second, resumed, 10, 20)

    assert losses == straight
    for ours, expected in zip(second.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, expected)


@ALL
def test_it_repeats_bit_for_bit(case: DenseCase) -> None:
    runs = [small_model() for _ in range(2)]
    first, second = (train(model, case.config.build(parameters(model)), 0, 10) for model in runs)
    assert first == second


@ALL
def test_a_learning_rate_of_zero_changes_nothing(case: DenseCase) -> None:
    """The schedule multiplies ``lr`` in the groups; nothing else may change the weights."""
    model = small_model()
    before = copy.deepcopy(model.state_dict())
    optimizer = case.config.build(parameters(model))
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    train(model, optimizer, 0, 3)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@ALL
def test_weight_decay_is_for_matrices_alone(case: DenseCase) -> None:
    model = small_model()
    decayed = case.config.model_copy(update={"weight_decay": 0.1})
    groups = decayed.build(parameters(model)).param_groups
    assert [(group["param_names"], group["weight_decay"]) for group in groups] == [
        (["0.weight", "3.weight"], 0.1),
        (["0.bias", "1.weight", "1.bias", "3.bias"], 0.0),
    ]


def test_decoupled_decay_by_hand() -> None:
    """With a zero gradient, AdamW multiplies a matrix by 1 − lr·decay and does not change a vector."""
    matrix, vector = nn.Parameter(torch.full((2, 2), 3.0)), nn.Parameter(torch.full((2,), 3.0))
    matrix.grad, vector.grad = torch.zeros(2, 2), torch.zeros(2)
    AdamW(lr=0.1, weight_decay=0.5).build({"matrix": matrix, "vector": vector}).step()
    torch.testing.assert_close(matrix.detach(), torch.full((2, 2), 3.0 * 0.95))
    assert vector.tolist() == [3.0, 3.0]


def test_l2_penalty_by_hand() -> None:
    """SGD: w − lr (g + decay·w)."""
    matrix = nn.Parameter(torch.full((1, 1), 3.0))
    matrix.grad = torch.full((1, 1), 2.0)
    SGD(lr=0.1, weight_decay=0.5).build({"matrix": matrix}).step()
    assert matrix.item() == pytest.approx(3.0 - 0.1 * (2.0 + 1.5))


def test_frozen_parameters_are_left_out() -> None:
    model = small_model()
    model[0].requires_grad_(False)
    groups = SGD().build(parameters(model)).param_groups
    assert [name for group in groups for name in group["param_names"]] == ["3.weight", "1.weight", "1.bias", "3.bias"]


def test_only_vectors_make_one_group() -> None:
    assert len(SGD().build({"bias": nn.Parameter(torch.zeros(3))}).param_groups) == 1


def test_nothing_to_optimize_is_refused() -> None:
    with pytest.raises(ConfigError, match="no trainable parameters"):
        SGD().build({})


class Holder(Config):
    optimizer: DenseOptimizerConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "adamm"}, "did you mean 'adam"),
        ({"name": "adam", "momentum": 0.9}, "optimizer.momentum: unknown key"),
        ({"name": "sgd", "lr": 0}, "optimizer.lr"),
        ({"name": "adam", "betas": [0.9, 1.0]}, "optimizer.betas.1"),
        ({"name": "adamw", "weight_decay": -0.1}, "optimizer.weight_decay"),
    ],
)
def test_a_bad_config_is_explained(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(Holder, {"optimizer": values})
