"""Shampoo's errors: what it refuses, and what the messages name."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from dense_cases import gradients, parameter, weights_after
from torch import Tensor, nn

from ziggurat.core.errors import ConfigError, DivergedError
from ziggurat.optim.shampoo.roots import RootError
from ziggurat.optim.shampoo.shampoo import Shampoo


def test_a_bad_gradient_in_one_group_changes_nothing_in_another() -> None:
    first, second = parameter((4, 4)), parameter((5, 5))
    optimizer = Shampoo([{"params": [("v", first)]}, {"params": [("w", second)]}])
    first.grad, second.grad = torch.ones_like(first), torch.full_like(second, math.nan)
    before = str(optimizer.state_dict()["state"])
    with pytest.raises(DivergedError, match="parameter 'w': its gradient has numbers"):
        optimizer.step()
    assert str(optimizer.state_dict()["state"]) == before


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_gradient_is_named_and_changes_nothing(bad: float) -> None:
    weights = parameter((6, 4))
    optimizer = Shampoo([("tower.0.weight", weights)], max_preconditioner_dim=4)
    weights_after(weights, optimizer, gradients((6, 4), 3))
    before = copy.deepcopy(optimizer.state_dict())
    held = weights.detach().clone()
    assert weights.grad is not None
    weights.grad[5, 3] = bad
    with pytest.raises(
        DivergedError, match=r"parameter 'tower\.0\.weight', block \[3:6, 0:4\]: its gradient has numbers"
    ):
        optimizer.step()
    assert torch.equal(weights.detach(), held)
    after = optimizer.state_dict()["state"][0]
    assert all(torch.equal(after[key], value) for key, value in before["state"][0].items())


@pytest.mark.parametrize("large", [3e19, 1e25])
def test_overflowing_squares_are_found_even_if_the_sum_cancels(large: float) -> None:
    weights = parameter((4,), torch.float32)
    optimizer = Shampoo([("w", weights)])
    weights.grad = torch.tensor([large, -large, 1.0, 1.0])
    with pytest.raises(DivergedError, match="parameter 'w': its squared gradient has numbers"):
        optimizer.step()


def test_factors_that_overflow_are_named() -> None:
    weights = parameter((6, 4), torch.float32)
    optimizer = Shampoo([weights], precondition_frequency=1, max_preconditioner_dim=6)
    weights.grad = torch.full((6, 4), 1e19)
    with pytest.raises(DivergedError, match=r"parameter '0\.0': its matrix of second moments of dimension 0"):
        optimizer.step()


def test_a_failing_root_keeps_the_last_one_three_times(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    weights = parameter((6, 4))
    optimizer = Shampoo([("w", weights)], precondition_frequency=1, max_preconditioner_dim=6, form="roots")
    steps = gradients((6, 4), 8)
    weights_after(weights, optimizer, steps[:2])
    held = optimizer.state[weights]["0/root_0"].clone()

    def failing(*_: Any) -> Tensor:
        raise RootError("eigenvalues do not converge")

    with monkeypatch.context() as patched:
        patched.setattr("ziggurat.optim.shampoo.roots.inverse_root", failing)
        weights_after(weights, optimizer, steps[2:5])
        assert torch.equal(optimizer.state[weights]["0/root_0"], held)
        assert (
            "parameter 'w', dimension 0: eigenvalues do not converge; the last one is kept (3 of 3 times)"
            in caplog.text
        )
        with pytest.raises(
            DivergedError, match=r"'w', dimension 0: eigenvalues do not converge; for the 4th time in a row"
        ):
            weights_after(weights, optimizer, steps[5:6])
    weights_after(weights, optimizer, steps[6:])
    assert not torch.equal(optimizer.state[weights]["0/root_0"], held)


def test_failures_of_late_roots_are_counted_independently_of_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Tensor:
        raise RootError("eigenvalues do not converge")

    monkeypatch.setattr("ziggurat.optim.shampoo.roots.inverse_root", failing)
    ends = list[int]()
    for is_saved in (False, True):
        weights = parameter((6, 4))
        optimizer = Shampoo([weights], precondition_frequency=2, late=1, max_preconditioner_dim=6, form="roots")
        with pytest.raises(DivergedError, match="for the 4th time in a row"):
            for step, gradient in enumerate(gradients((6, 4), 20)):
                ends.append(step)
                weights_after(weights, optimizer, [gradient])
                if is_saved:
                    optimizer.state_dict()
    assert ends == [*range(len(ends) // 2)] * 2


def test_a_sparse_gradient_is_refused() -> None:
    table = nn.EmbeddingBag(10, 4, sparse=True)
    table(torch.tensor([[1, 2]])).sum().backward()
    with pytest.raises(ConfigError, match=r"the gradient of parameter 'weight' is sparse"):
        Shampoo(table.named_parameters()).step()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0}, r"lr"),
        ({"betas": (0.9, 1.1)}, r"betas\.1"),
        ({"graft": "adamm"}, r"graft"),
        ({"max_preconditioner_dim": 1}, r"max_preconditioner_dim"),
        ({"precondition_frequency": 0}, r"precondition_frequency"),
        ({"statistics_frequency": 21}, r"21 steps are more than the 20 until the first roots"),
        ({"late": 50}, r"late: 50 steps are not fewer than the precondition_frequency, 50"),
        ({"exponents": {2: [0.5]}}, r"2 dimensions need 2 numbers, not 1"),
        ({"nesterov": True}, r"needs momentum"),
        ({"lr": math.inf}, r"lr"),
        ({"root": "newton", "exponents": {2: [0.4, 0.4]}}, r"newton needs exponents that are one over a whole number"),
        ({"form": "eigenbasis", "root": "newton"}, r"newton finds no eigenvectors"),
        ({"presondition_frequency": 3}, r"did you mean 'precondition_frequency'"),
    ],
    ids=str,
)
def test_bad_settings_are_explained(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Shampoo([parameter((2, 2))], **settings)


def test_integer_parameters_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"parameter '0\.0' is torch\.int64"):
        Shampoo([torch.zeros(3, dtype=torch.int64)])


@pytest.mark.parametrize(
    ("key", "value"), [("precondition_frequency", 9), ("momentum", 0.9), ("graft", {"name": "sgd"}), ("vectors", True)]
)
def test_changing_a_fixed_setting_is_refused(key: str, value: Any) -> None:
    weights = parameter((6, 4))
    optimizer = Shampoo([weights])
    weights_after(weights, optimizer, gradients((6, 4), 1))
    optimizer.param_groups[0][key] = value
    with pytest.raises(ConfigError, match=rf"{key} was changed to .*, but the states are of"):
        weights_after(weights, optimizer, gradients((6, 4), 1))


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"weight_decai": 0.1}, "did you mean 'weight_decay'"),
        ({"communicate": "bf16"}, "communicate is 'bf16' in group 1 and 'fp32' in group 0"),
    ],
)
def test_bad_groups_are_explained(group: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Shampoo([{"params": [parameter((2, 2))]}, {"params": [parameter((3, 3))], **group}])


def test_adding_a_group_later_is_refused() -> None:
    with pytest.raises(ConfigError, match="made already"):
        Shampoo([parameter((2, 2))]).add_param_group({"params": [parameter((2, 2))]})


def test_a_gradient_with_overflowing_square_is_named_and_changes_nothing() -> None:
    """Otherwise second moments would be infinite from then on, and the weights would not change any more."""
    weights = parameter((6, 4), torch.float32)
    optimizer = Shampoo([("w", weights)])
    weights_after(weights, optimizer, [each.float() for each in gradients((6, 4), 34)])
    before, states = weights.detach().clone(), str(optimizer.state_dict()["state"])
    weights.grad = torch.full((6, 4), 1e36)
    with pytest.raises(DivergedError, match="parameter 'w': its squared gradient has numbers that are not finite"):
        optimizer.step()
    assert torch.equal(weights, before)
    assert str(optimizer.state_dict()["state"]) == states


def test_a_non_finite_step_is_named_and_not_taken() -> None:
    """The gradient's squares are finite, but its norm overflows."""
    weights = parameter((60, 60), torch.float32)
    optimizer = Shampoo([("w", weights)], graft="sgd", start=1, betas=(0.0, 0.99))
    weights_after(weights, optimizer, [each.float() for each in gradients((60, 60), 12)])
    before = weights.detach().clone()
    weights.grad = torch.full((60, 60), 1e18)
    with pytest.raises(DivergedError, match="parameter 'w': its step has numbers that are not finite"):
        optimizer.step()
    assert torch.equal(weights, before)


@pytest.mark.parametrize("shape", [(3, 4), (6, 2), (4, 6)], ids=str)
def test_a_changed_shape_is_named_and_nothing_is_written(shape: tuple[int, ...]) -> None:
    weights = parameter((6, 4), torch.float32)
    optimizer = Shampoo([("w", weights)], lr=1.0)
    size = shape[0] * shape[1]
    buffer = torch.zeros(100)
    weights.data = buffer[:size].view(shape)
    weights.grad = torch.ones(shape)
    with pytest.raises(ConfigError, match=r"parameter 'w' is \(.*\) now and was \(6, 4\)"):
        optimizer.step()
    assert torch.equal(buffer, torch.zeros(100))


def test_a_changed_shape_leaves_other_parameters_unchanged() -> None:
    first = nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last))
    second = parameter((8, 9), torch.float32)
    optimizer = Shampoo([("a", first), ("b", second)])
    first.grad, second.grad = torch.ones_like(first), torch.ones(8, 9)
    before, states = first.detach().clone(), str(optimizer.state_dict()["state"])
    second.data = second.data[:4].clone()
    with pytest.raises(ConfigError, match=r"parameter 'b' is \(4, 9\) now and was \(8, 9\)"):
        optimizer.step()
    assert torch.equal(first, before)
    assert str(optimizer.state_dict()["state"]) == states


def test_a_mean_without_state_is_refused() -> None:
    weights = parameter((6, 4))
    optimizer = Shampoo([weights], betas=(0.0, 0.99), graft="sgd")
    optimizer.param_groups[0]["beta3"] = 0.9
    with pytest.raises(ConfigError, match=r"beta3 was changed to 0\.9, but the states are of None"):
        weights_after(weights, optimizer, gradients((6, 4), 1))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("lr", -1.0, r"lr was changed to -1\.0"),
        ("lr", math.nan, "lr was changed to nan"),
        ("betas", (0.9, 1.7), "betas"),
        ("decay", "coupledd", "decay"),
    ],
)
def test_invalid_later_changes_are_explained(key: str, value: Any, message: str) -> None:
    weights = parameter((6, 4))
    optimizer = Shampoo([weights])
    optimizer.param_groups[0][key] = value
    with pytest.raises(ConfigError, match=message):
        weights_after(weights, optimizer, gradients((6, 4), 1))


def test_8_bit_parameters_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"parameter '0\.0' is torch\.float8_e5m2"):
        Shampoo([torch.zeros(3).to(torch.float8_e5m2)])
