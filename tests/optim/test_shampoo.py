"""Shampoo in one process: its formulas, its grafts, and parameters of every kind."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from dense_cases import gradients, parameter, weights_after
from shampoo_reference import Reference
from torch import Tensor, nn

from ziggurat.optim.shampoo.shampoo import Shampoo

NEVER_START = 10**9
SHAPES = [(7,), (5, 3), (16, 16), (4, 3, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"betas": (0.0, 1.0), "graft": ("none",)},
        {"graft": ("sgd",), "momentum": 0.9},
        {"graft": ("adagrad", 1e-10), "momentum": 0.5, "nesterov": True},
        {"graft": ("rmsprop", 0.99, 1e-8), "weight_decay": 0.1},
        {"weight_decay": 0.1, "decay": "coupled", "start": 5},
        {"statistics_frequency": 3, "start": 4},
        {"statistics_frequency": 4, "start": 4, "betas": (0.9, 1.0)},
        {"form": "eigenbasis", "graft": ("none",), "start": 10},
        {"form": "eigenbasis", "graft": ("rmsprop", 0.99, 1e-8), "start": 10, "betas": (0.95, 1.0)},
        {"form": "eigenbasis", "start": 13},
        {"form": "eigenbasis", "statistics_frequency": 4, "start": 14, "precondition_frequency": 6},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_one_block_equals_the_reference(shape: tuple[int, ...], settings: dict[str, Any]) -> None:
    """In fp64, over fifty steps; dimensions are too large to be merged. The eigenbasis starts when every second moment
    has full rank, because a multiple eigenvalue has no unique eigenvectors."""
    weights, steps = parameter(shape), gradients(shape, 50)
    reference = Reference(weights.detach().numpy(), **settings)
    for gradient in steps:
        reference.step(gradient.numpy())
    ours = {**Reference.DEFAULTS, **settings}
    kind, *rest = ours["graft"]
    names = {"adam": ("beta2", "eps"), "rmsprop": ("beta2", "eps"), "adagrad": ("eps",)}.get(kind, ())
    ours["graft"] = {"name": kind, **dict(zip(names, rest, strict=True))}
    found = weights_after(weights, Shampoo([weights], vectors=True, max_preconditioner_dim=max(shape), **ours), steps)
    np.testing.assert_allclose(found.numpy(), reference.weights, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("settings", "other"),
    [
        ({"graft": "sgd", "betas": (0.0, 0.99)}, lambda p: torch.optim.SGD(p, lr=0.1)),
        (
            {"graft": "sgd", "betas": (0.0, 0.99), "momentum": 0.9, "nesterov": True},
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        ),
        (
            {"graft": "sgd", "betas": (0.0, 0.99), "weight_decay": 0.1, "decay": "coupled", "momentum": 0.9},
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        ),
        ({"graft": "adagrad", "betas": (0.0, 0.99)}, lambda p: torch.optim.Adagrad(p, lr=0.1)),
        ({"graft": "rmsprop", "betas": (0.0, 0.99)}, lambda p: torch.optim.RMSprop(p, lr=0.1)),
        ({}, lambda p: torch.optim.Adam(p, lr=0.1)),
        ({"weight_decay": 0.1, "decay": "coupled"}, lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1)),
        ({"weight_decay": 0.1}, lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1)),
    ],
    ids=["sgd", "sgd-nesterov", "sgd-decay", "adagrad", "rmsprop", "adam", "adam-decay", "adamw"],
)
def test_the_graft_alone_equals_torchs_optimizer(settings: dict[str, Any], other: Any) -> None:
    """In fp64, over forty steps; blocks are at most 4 × 4."""
    ours, theirs, steps = parameter((9, 6)), parameter((9, 6)), gradients((9, 6), 40)
    found = weights_after(ours, Shampoo([ours], lr=0.1, start=NEVER_START, max_preconditioner_dim=4, **settings), steps)
    torch.testing.assert_close(found, weights_after(theirs, other([theirs]), steps), rtol=1e-10, atol=1e-12)


def test_decays_by_hand() -> None:
    """The gradient is zero, lr is 0.1 and was at most 0.2, weight decay is 0.5."""
    shrunk = {"decoupled": 1 - 0.1 * 0.5, "corrected": 1 - 0.1 * 0.5 * 0.5, "independent": 1 - 0.5 * 0.5}
    for decay, expected in shrunk.items():
        weights = nn.Parameter(torch.full((2, 2), 3.0))
        optimizer = Shampoo([weights], lr=0.2, weight_decay=0.5, decay=decay)
        optimizer.param_groups[0]["lr"] = 0.1
        weights.grad = torch.zeros(2, 2)
        optimizer.step()
        torch.testing.assert_close(weights.detach(), torch.full((2, 2), 3.0 * expected))


def test_blocks_step_like_separate_parameters() -> None:
    """A matrix that is cut into four blocks takes the steps that its quarters take as separate parameters."""
    whole, steps = parameter((8, 6), torch.float32), gradients((8, 6), 7)
    parts = [nn.Parameter(part.clone()) for half in whole.detach().chunk(2, 0) for part in half.chunk(2, 1)]
    settings: dict[str, Any] = {"precondition_frequency": 3, "start": 2, "lr": 0.1}
    weights_after(whole, Shampoo([whole], max_preconditioner_dim=4, **settings), steps)
    optimizer = Shampoo(parts, max_preconditioner_dim=4, **settings)
    for gradient in steps:
        for part, own in zip(parts, [each for half in gradient.chunk(2, 0) for each in half.chunk(2, 1)], strict=True):
            part.grad = own.float()
        optimizer.step()
    again = [part for half in whole.detach().chunk(2, 0) for part in half.chunk(2, 1)]
    assert all(torch.equal(mine, part) for mine, part in zip(again, parts, strict=True))


@pytest.mark.parametrize("root", ["eigh", "newton", "qr"])
def test_root_methods_agree(root: str) -> None:
    """Power iteration lags behind the others, so its tolerance is larger."""
    found = {}
    for method in ("eigh", root):
        weights = parameter((6, 4))
        settings: dict[str, Any] = {
            "epsilon": 1e-4,
            "precondition_frequency": 1,
            "lr": 0.1,
            "root": method,
            "form": "roots",
        }
        found[method] = weights_after(
            weights, Shampoo([weights], max_preconditioner_dim=6, **settings), gradients((6, 4), 60)
        )
    moved = torch.linalg.norm(found["eigh"] - parameter((6, 4)))
    assert torch.linalg.norm(found["eigh"] - found[root]) < (0.1 if root == "qr" else 1e-6) * moved


@pytest.mark.parametrize("max_dim", [16, 1024], ids=["as a matrix", "as a vector"])
@pytest.mark.parametrize("form", ["roots", "eigenbasis"])
def test_it_trains_a_network_faster_than_its_graft(form: str, max_dim: int) -> None:
    """On ill-conditioned least squares, at the same learning rate, by the steps until the loss is a thousandth."""

    def steps_of(start: int) -> int:
        torch.manual_seed(0)
        inputs_BF = torch.randn(256, 20) * torch.logspace(0, -2, 20)
        target_BT = inputs_BF @ (torch.randn(20, 8) * torch.logspace(0, 2, 20)[:, None])
        weights = nn.Parameter(torch.zeros(20, 8))
        optimizer = Shampoo(
            [weights], lr=0.3, start=start, precondition_frequency=5, max_preconditioner_dim=max_dim, form=form
        )
        first = (target_BT**2).mean().item()
        for step in range(2000):
            loss = ((inputs_BF @ weights - target_BT) ** 2).mean()
            if loss.item() < 1e-3 * first:
                return step
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return 2000

    assert steps_of(5) < 0.8 * steps_of(NEVER_START)


def test_exponents_of_zero_leave_a_dimension_alone() -> None:
    weights = parameter((6, 4))
    optimizer = Shampoo([weights], exponents={2: [0.5, 0.0]}, max_preconditioner_dim=6, form="roots")
    assert sorted(optimizer.state[weights]) == ["0/factor_0", "0/graft", "0/mean", "0/root_0", "step"]


def test_a_gradient_that_is_missing_leaves_its_parameter_alone() -> None:
    both, alone = [parameter((4, 4)), parameter((4, 4))], parameter((4, 4))
    optimizer = Shampoo(both, lr=0.1, precondition_frequency=2)
    steps = gradients((4, 4), 9)
    for number, gradient in enumerate(steps):
        both[0].grad = gradient.clone()
        both[1].grad = gradient.clone() if number % 3 else None
        optimizer.step()
    only = [gradient for number, gradient in enumerate(steps) if number % 3]
    expected = weights_after(alone, Shampoo([alone], lr=0.1, precondition_frequency=2), only)
    assert torch.equal(both[1].detach(), expected)
    assert not torch.equal(both[0].detach(), expected)


def test_zero_gradients_move_nothing() -> None:
    weights = parameter((6, 4))
    before = weights.detach().clone()
    weights_after(weights, Shampoo([weights], precondition_frequency=1), [torch.zeros(6, 4)] * 5)
    assert torch.equal(weights.detach(), before)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)], ids=str)
def test_single_numbers_take_the_grafts_step(shape: tuple[int, ...]) -> None:
    ours, theirs, steps = parameter(shape), parameter(shape), gradients(shape, 5)
    found = weights_after(ours, Shampoo([ours], lr=0.1, precondition_frequency=1), steps)
    torch.testing.assert_close(found, weights_after(theirs, torch.optim.Adam([theirs], lr=0.1), steps))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)], ids=str)
def test_single_numbers_without_a_graft_are_preconditioned(shape: tuple[int, ...]) -> None:
    """By hand: their matrix is the number v, the moving mean of the squared gradient, and its root (v̂ + ε)^(−1/2)."""
    weights, steps = parameter(shape), gradients(shape, 9)
    w, mean, square = float(weights.detach()), 0.0, 0.0
    settings: dict[str, Any] = {"graft": "none", "vectors": True, "form": "roots", "epsilon": 1e-4, "start": 3}
    found = weights_after(weights, Shampoo([weights], lr=0.1, precondition_frequency=2, **settings), steps)
    root = 1.0
    for step, gradient in enumerate(map(float, steps), 1):
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        if step == 3 or (step > 3 and step % 2 == 0):
            root = (square / (1 - 0.99**step) + 1e-4) ** -0.5
        w -= 0.1 * root * mean / (1 - 0.9**step)
    assert float(found) == pytest.approx(w, rel=1e-9)
    plain = parameter(shape)
    settings["vectors"] = False
    plain_mean = weights_after(plain, Shampoo([plain], lr=0.1, precondition_frequency=2, **settings), steps)
    assert not torch.allclose(found, plain_mean)


@pytest.mark.parametrize("form", ["roots", "eigenbasis"])
def test_dimensions_of_one_number_count_without_a_graft(form: str) -> None:
    """(3, 3) cut into parts of 2: blocks of (1, 1), (1, 2), (2, 1) and (2, 2), each as the reference says."""
    weights, steps = parameter((3, 3)), gradients((3, 3), 40)
    settings: dict[str, Any] = {"form": form, "start": 10}
    parts = (slice(0, 1), slice(1, 3))
    cuts = [(rows, columns) for rows in parts for columns in parts]
    references = [Reference(weights.detach().numpy()[cut], graft=("none",), **settings) for cut in cuts]
    ours = {**Reference.DEFAULTS, **settings, "graft": "none"}
    found = weights_after(weights, Shampoo([weights], max_preconditioner_dim=2, **ours), steps).numpy()
    for cut, reference in zip(cuts, references, strict=True):
        for gradient in steps:
            reference.step(gradient.numpy()[cut])
        np.testing.assert_allclose(found[cut], reference.weights, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("form", ["roots", "eigenbasis"])
def test_vectors_are_preconditioned_only_if_requested(form: str) -> None:
    """A matrix small enough to be merged into one dimension does not count as a vector."""
    matrix, bias = (nn.Parameter(torch.ones(shape)) for shape in ((6, 4), (24,)))
    optimizer = Shampoo([matrix, bias], form=form, start=1, precondition_frequency=1)
    plain = nn.Parameter(torch.ones(24))
    adam = torch.optim.Adam([plain], betas=(0.9, 0.999), lr=1e-3)
    for gradient in gradients((24,), 20):
        matrix.grad = gradient.float().view(6, 4)
        bias.grad, plain.grad = gradient.float(), gradient.float()
        optimizer.step()
        adam.step()
    torch.testing.assert_close(bias, plain)
    assert not torch.allclose(matrix.flatten(), bias, atol=1e-4)
    assert {"0/factor_1"} <= optimizer.state[matrix].keys() - optimizer.state[bias].keys()
    asked = Shampoo([nn.Parameter(torch.ones(24))], form=form, vectors=True)
    assert "0/factor_1" in asked.state_dict()["state"][0]


def test_empty_parameters_are_left_alone() -> None:
    empty, weights = nn.Parameter(torch.zeros(0, 4)), parameter((3, 3))
    optimizer = Shampoo([empty, weights])
    empty.grad, weights.grad = torch.zeros(0, 4), torch.ones(3, 3, dtype=torch.float64)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())


def test_parameters_and_gradients_in_any_layout() -> None:
    """Layouts: transposed, and channels last."""
    for shape, layout in (
        ((6, 4), lambda t: t.T.contiguous().T),
        ((4, 3, 5, 2), lambda t: t.to(memory_format=torch.channels_last)),
    ):
        plain, other, steps = parameter(shape), parameter(shape), gradients(shape, 6)
        other.data = layout(other.data)
        assert not other.is_contiguous()
        settings: dict[str, Any] = {"lr": 0.1, "precondition_frequency": 2, "max_preconditioner_dim": 6}
        expected = weights_after(plain, Shampoo([plain], **settings), steps)
        assert torch.equal(
            weights_after(other, Shampoo([other], **settings), [layout(step) for step in steps]), expected
        )


def test_half_precision_has_states_in_fp32() -> None:
    weights = parameter((6, 4), torch.bfloat16)
    optimizer = Shampoo([weights], lr=0.1, precondition_frequency=2)
    weights_after(weights, optimizer, gradients((6, 4), 5))
    assert weights.dtype == torch.bfloat16
    assert {each.dtype for each in optimizer.state[weights].values()} == {torch.float32}


def test_corrected_decay_uses_the_highest_learning_rate_so_far() -> None:
    """A schedule may start above the learning rate that the optimizer was made with."""
    weights = nn.Parameter(torch.full((2, 2), 3.0))
    optimizer = Shampoo([weights], lr=0.001, weight_decay=0.5, decay="corrected")
    for lr, shrunk in ((0.1, 1 - 0.1 * 0.5), (0.05, 1 - 0.05 * 0.5 * 0.5)):
        before = weights.detach().clone()
        optimizer.param_groups[0]["lr"] = lr
        weights.grad = torch.zeros(2, 2)
        optimizer.step()
        torch.testing.assert_close(weights.detach(), before * shrunk)


def test_groups_have_their_own_settings() -> None:
    matrix, vector = parameter((6, 4)), parameter((6,))
    optimizer = Shampoo([{"params": [matrix]}, {"params": [vector], "graft": "sgd", "lr": 0.5}], lr=0.1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.5]
    assert "0/graft" in optimizer.state[matrix]
    assert "0/graft" not in optimizer.state[vector]


@pytest.mark.parametrize("decay", ["decoupled", "coupled"])
def test_groups_step_like_separate_optimizers(decay: str) -> None:
    """Groups that differ only in weight decay and learning rate are processed together, until one is changed."""
    settings: dict[str, Any] = {"precondition_frequency": 3, "max_preconditioner_dim": 4, "decay": decay}
    own = ({"lr": 0.1, "weight_decay": 0.2}, {"lr": 0.03, "weight_decay": 0.0}, {"lr": 0.1, "weight_decay": 0.05})
    shapes = [(6, 4), (4, 5), (5,)]

    def make() -> list[nn.Parameter]:
        return [parameter(shape) for shape in shapes]

    ours, alone = make(), make()
    together = Shampoo([{"params": [each], **group} for each, group in zip(ours, own, strict=True)], **settings)
    others = [Shampoo([each], **settings, **group) for each, group in zip(alone, own, strict=True)]
    for step in range(24):
        if step == 16:
            together.param_groups[1]["betas"] = others[1].param_groups[0]["betas"] = (0.5, 0.9)
        for each, other, shape in zip(ours, alone, shapes, strict=True):
            each.grad = other.grad = gradients(shape, 24)[step]
        together.step()
        for other in others:
            other.step()
        assert all(torch.equal(each, other) for each, other in zip(ours, alone, strict=True)), step


def test_a_closure_is_evaluated_with_gradients() -> None:
    weights = parameter((3, 3))
    optimizer = Shampoo([weights])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = weights.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == pytest.approx(parameter((3, 3)).square().sum().item())
    assert weights.grad is not None


def test_parameters_may_move_to_other_memory() -> None:
    """Between steps, the parameter is moved into a buffer that also holds other data."""
    ours, plain, steps = parameter((6, 4)), parameter((6, 4)), gradients((6, 4), 8)
    settings: dict[str, Any] = {"lr": 0.1, "precondition_frequency": 2, "max_preconditioner_dim": 4}
    optimizer = Shampoo([ours], **settings)
    weights_after(ours, optimizer, steps[:4])
    buffer = torch.ones(40, dtype=torch.float64)
    buffer[7:31] = ours.detach().flatten()
    ours.data = buffer[7:31].view(6, 4)
    found = weights_after(ours, optimizer, steps[4:])
    assert torch.equal(found, weights_after(plain, Shampoo([plain], **settings), steps))
    assert torch.equal(torch.cat([buffer[:7], buffer[31:]]), torch.ones(16, dtype=torch.float64))


def test_directions_are_bounded_by_that_of_a_constant_gradient() -> None:
    """Without a graft, whose norm would hide the bound. Few directions of the layer get large gradients, and second
    moments count one gradient in ten."""
    generator, weights = torch.Generator().manual_seed(0), parameter((12, 12), torch.float32)
    optimizer = Shampoo([weights], lr=1.0, graft="none", betas=(0.0, 0.99), start=1, precondition_frequency=10)
    for step in range(60):
        before = weights.detach().clone()
        weights.grad = torch.randn(12, 12, generator=generator) * torch.logspace(0, -6, 12)
        optimizer.step()
        if step > 11:
            assert torch.linalg.norm(weights.detach() - before) <= 12.0 * (1 + 1e-5)


def test_beta3_may_be_set_later() -> None:
    first, second, steps = parameter((6, 4)), parameter((6, 4)), gradients((6, 4), 6)
    changed, always = Shampoo([first], lr=0.1), Shampoo([second], lr=0.1, beta3=0.3)
    changed.param_groups[0]["beta3"] = 0.3
    torch.testing.assert_close(weights_after(first, changed, steps), weights_after(second, always, steps))


def test_betas_may_change_if_beta3_keeps_a_mean() -> None:
    first, second, steps = parameter((6, 4)), parameter((6, 4)), gradients((6, 4), 6)
    changed, always = Shampoo([first], betas=(0.0, 0.99), beta3=0.3), Shampoo([second], betas=(0.9, 0.99), beta3=0.3)
    changed.param_groups[0]["betas"] = (0.9, 0.99)
    torch.testing.assert_close(weights_after(first, changed, steps), weights_after(second, always, steps))


def test_groups_may_have_names() -> None:
    optimizer = Shampoo([{"params": [parameter((3, 3))], "name": "head", "lr": 0.5}])
    assert optimizer.state_dict()["param_groups"][0]["name"] == "head"


def test_steps_are_counted_exactly_under_any_default_dtype() -> None:
    try:
        torch.set_default_dtype(torch.bfloat16)
        weights = parameter((3, 3), torch.float32)
        optimizer = Shampoo([weights], precondition_frequency=2)
        for _ in range(300):
            weights.grad = torch.ones(3, 3, dtype=torch.float32)
            optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)
    assert int(optimizer.state[weights]["step"]) == 300


def test_autocast_has_no_effect() -> None:
    """Products in autocast's bf16 would be off by a thousandth."""

    def trained(is_cast: bool) -> list[Tensor]:
        weights = [parameter(shape, torch.float32) for shape in ((8, 6, 3, 3), (16, 12))]
        optimizer = Shampoo(weights, lr=0.1, precondition_frequency=2, max_preconditioner_dim=12, form="roots")
        for step in range(8):
            for each in weights:
                each.grad = gradients(tuple(each.shape), 8)[step].float()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_cast):
                optimizer.step()
        return weights

    assert all(torch.equal(cast, plain) for cast, plain in zip(trained(True), trained(False), strict=True))


def test_states_edited_in_place_take_effect() -> None:
    """Values cached from step to step must not hide the edits."""
    first, second, steps = parameter((6, 4)), parameter((6, 4)), gradients((6, 4), 40)
    edited, loaded = (Shampoo([each], lr=0.1, max_preconditioner_dim=6) for each in (first, second))
    for weights, optimizer in ((first, edited), (second, loaded)):
        weights_after(weights, optimizer, steps[:34])
        optimizer.state[weights]["0/moment"].mul_(1e4).add_(1)
    loaded.load_state_dict(copy.deepcopy(loaded.state_dict()))
    assert torch.equal(weights_after(first, edited, steps[34:36]), weights_after(second, loaded, steps[34:36]))


@pytest.mark.parametrize("shape", [(1, 300), (300, 1)])
def test_a_matrix_of_one_row_or_column_is_a_vector(shape: tuple[int, int]) -> None:
    ours, theirs = parameter(shape), parameter(shape)
    steps = gradients(shape, 40)
    found = weights_after(ours, Shampoo([ours], lr=0.1), steps)
    torch.testing.assert_close(found, weights_after(theirs, torch.optim.Adam([theirs], lr=0.1), steps))


def test_a_long_vector_is_one_block() -> None:
    """It takes the graft's steps; if it were cut, there would be a call for each part."""
    weights = parameter((100_000,), torch.float32)
    optimizer = Shampoo([weights])
    assert {key for key in optimizer.state[weights] if key.startswith("1/")} == set()
