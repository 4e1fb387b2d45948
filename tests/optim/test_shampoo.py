"""Shampoo in one process: its formulas, its grafts, its state, and what it refuses."""

from __future__ import annotations

import copy
import io
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from dense_cases import small_model, train
from shampoo_reference import Reference
from torch import Tensor, nn

from ziggurat.core.errors import ConfigError, DivergedError
from ziggurat.optim.shampoo.roots import RootError
from ziggurat.optim.shampoo.shampoo import Shampoo

NEVER = 10**9
SHAPES = [(7,), (5, 3), (16, 16), (4, 3, 5)]


def gradients(shape: tuple[int, ...], steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(steps)]


def parameter(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype))


def taken(weights: nn.Parameter, optimizer: torch.optim.Optimizer, steps: list[Tensor]) -> Tensor:
    for gradient in steps:
        weights.grad = gradient.to(weights.dtype)
        optimizer.step()
    return weights.detach()


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
        {"form": "eigenbasis", "start": 13},
        {"form": "eigenbasis", "statistics_frequency": 4, "start": 14, "precondition_frequency": 6},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_one_block_is_what_the_formulas_say(shape: tuple[int, ...], settings: dict[str, Any]) -> None:
    """fp64, twenty steps; dimensions are too large to be merged. The eigenbasis begins when every second moment is of
    full rank: in the space of a multiple eigenvalue any basis would do."""
    weights, steps = parameter(shape), gradients(shape, 20)
    reference = Reference(weights.detach().numpy(), **settings)
    for gradient in steps:
        reference.step(gradient.numpy())
    ours = {**Reference.DEFAULTS, **settings}
    kind, *rest = ours["graft"]
    names = {"adam": ("beta2", "eps"), "rmsprop": ("beta2", "eps"), "adagrad": ("eps",)}.get(kind, ())
    ours["graft"] = {"name": kind, **dict(zip(names, rest, strict=True))}
    found = taken(weights, Shampoo([weights], vectors=True, max_preconditioner_dim=max(shape), **ours), steps)
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
def test_a_graft_alone_is_that_optimizer(settings: dict[str, Any], other: Any) -> None:
    """fp64, forty steps; blocks of 4 × 4 and less."""
    ours, theirs, steps = parameter((9, 6)), parameter((9, 6)), gradients((9, 6), 40)
    found = taken(ours, Shampoo([ours], lr=0.1, start=NEVER, max_preconditioner_dim=4, **settings), steps)
    torch.testing.assert_close(found, taken(theirs, other([theirs]), steps), rtol=1e-10, atol=1e-12)


def test_decays_by_hand() -> None:
    """No gradient, lr .1 of at most .2, weight decay .5."""
    shrunk = {"decoupled": 1 - 0.1 * 0.5, "corrected": 1 - 0.1 * 0.5 * 0.5, "independent": 1 - 0.5 * 0.5}
    for decay, expected in shrunk.items():
        weights = nn.Parameter(torch.full((2, 2), 3.0))
        optimizer = Shampoo([weights], lr=0.2, weight_decay=0.5, decay=decay)
        optimizer.param_groups[0]["lr"] = 0.1
        weights.grad = torch.zeros(2, 2)
        optimizer.step()
        torch.testing.assert_close(weights.detach(), torch.full((2, 2), 3.0 * expected))


def test_blocks_are_parameters_of_their_own() -> None:
    """A matrix that is cut in four takes the steps that its quarters would take alone."""
    whole, steps = parameter((8, 6), torch.float32), gradients((8, 6), 7)
    parts = [nn.Parameter(part.clone()) for half in whole.detach().chunk(2, 0) for part in half.chunk(2, 1)]
    settings: dict[str, Any] = {"precondition_frequency": 3, "start": 2, "lr": 0.1}
    taken(whole, Shampoo([whole], max_preconditioner_dim=4, **settings), steps)
    optimizer = Shampoo(parts, max_preconditioner_dim=4, **settings)
    for gradient in steps:
        for part, own in zip(parts, [each for half in gradient.chunk(2, 0) for each in half.chunk(2, 1)], strict=True):
            part.grad = own.float()
        optimizer.step()
    again = [part for half in whole.detach().chunk(2, 0) for part in half.chunk(2, 1)]
    assert all(torch.equal(mine, part) for mine, part in zip(again, parts, strict=True))


@pytest.mark.parametrize("root", ["eigh", "newton", "qr"])
def test_methods_agree(root: str) -> None:
    """Power iteration lags behind."""
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
        found[method] = taken(weights, Shampoo([weights], max_preconditioner_dim=6, **settings), gradients((6, 4), 60))
    moved = torch.linalg.norm(found["eigh"] - parameter((6, 4)))
    assert torch.linalg.norm(found["eigh"] - found[root]) < (0.1 if root == "qr" else 1e-6) * moved


@pytest.mark.parametrize("most", [16, 1024], ids=["as a matrix", "as a vector"])
@pytest.mark.parametrize("form", ["roots", "eigenbasis"])
def test_it_trains_a_network_faster_than_its_graft(form: str, most: int) -> None:
    """Ill-conditioned least squares; steps until the loss has fallen to a thousandth, at the same learning rate."""

    def steps_of(start: int) -> int:
        torch.manual_seed(0)
        inputs_BF = torch.randn(256, 20) * torch.logspace(0, -2, 20)
        target_BT = inputs_BF @ (torch.randn(20, 8) * torch.logspace(0, 2, 20)[:, None])
        weights = nn.Parameter(torch.zeros(20, 8))
        optimizer = Shampoo(
            [weights], lr=0.3, start=start, precondition_frequency=5, max_preconditioner_dim=most, form=form
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

    assert steps_of(5) < 0.8 * steps_of(NEVER)


def test_exponents_of_zero_leave_a_dimension_alone() -> None:
    weights = parameter((6, 4))
    optimizer = Shampoo([weights], exponents={2: [0.5, 0.0]}, max_preconditioner_dim=6, form="roots")
    assert sorted(optimizer.state[weights]) == ["0/factor_0", "0/graft", "0/mean", "0/root_0", "step"]


@pytest.mark.parametrize("late", [0, 2])
@pytest.mark.parametrize("settings", [{}, {"root": "qr"}, {"form": "roots"}, {"statistics_frequency": 3}], ids=str)
def test_saved_and_gone_on_with_at_any_step(settings: dict[str, Any], late: int) -> None:
    """Also between the step at which roots are taken and the one at which they are used."""

    def made(model: nn.Module) -> Shampoo:
        return Shampoo(model.named_parameters(), lr=0.05, precondition_frequency=4, late=late, **settings)

    whole = small_model()
    straight = train(whole, made(whole), 0, 16)
    for stop in range(3, 14):
        first = small_model()
        optimizer = made(first)
        losses = train(first, optimizer, 0, stop)
        file = io.BytesIO()
        torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, file)
        train(first, optimizer, stop, stop + 3)  # what goes on there is not what was saved
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        second = small_model()
        second.load_state_dict(saved["model"])
        resumed = made(second)
        resumed.load_state_dict(saved["optimizer"])
        assert losses + train(second, resumed, stop, 16) == straight, stop


def test_late_roots_are_those_of_earlier_steps() -> None:
    """Roots of step 4 that are used at 6 are the roots of step 4."""
    weights = parameter((6, 4))
    optimizer = Shampoo([weights], lr=0.0001, precondition_frequency=4, late=2, max_preconditioner_dim=6, form="roots")
    steps = gradients((6, 4), 12)
    seen: list[Tensor] = []
    for gradient in steps:
        taken(weights, optimizer, [gradient])
        seen.append(optimizer.state[weights]["0/root_0"].clone())
    changes = [step for step in range(2, 13) if not torch.equal(seen[step - 1], seen[step - 2])]
    assert changes == [4, 10]  # the first at once, the eighth's two later


def test_a_gradient_that_is_missing_leaves_its_parameter_alone() -> None:
    both, alone = [parameter((4, 4)), parameter((4, 4))], parameter((4, 4))
    optimizer = Shampoo(both, lr=0.1, precondition_frequency=2)
    steps = gradients((4, 4), 9)
    for number, gradient in enumerate(steps):
        both[0].grad = gradient.clone()
        both[1].grad = gradient.clone() if number % 3 else None
        optimizer.step()
    only = [gradient for number, gradient in enumerate(steps) if number % 3]
    expected = taken(alone, Shampoo([alone], lr=0.1, precondition_frequency=2), only)
    assert torch.equal(both[1].detach(), expected)
    assert not torch.equal(both[0].detach(), expected)


def test_zero_gradients_move_nothing() -> None:
    weights = parameter((6, 4))
    before = weights.detach().clone()
    taken(weights, Shampoo([weights], precondition_frequency=1), [torch.zeros(6, 4)] * 5)
    assert torch.equal(weights.detach(), before)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)], ids=str)
def test_single_numbers_take_the_graft(shape: tuple[int, ...]) -> None:
    ours, theirs, steps = parameter(shape), parameter(shape), gradients(shape, 5)
    found = taken(ours, Shampoo([ours], lr=0.1, precondition_frequency=1), steps)
    torch.testing.assert_close(found, taken(theirs, torch.optim.Adam([theirs], lr=0.1), steps))


@pytest.mark.parametrize("form", ["roots", "eigenbasis"])
def test_vectors_take_the_graft_alone_unless_asked_for(form: str) -> None:
    """A matrix that is small enough to be one dimension is none of them."""
    matrix, bias = (nn.Parameter(torch.ones(shape)) for shape in ((6, 4), (24,)))
    optimizer = Shampoo([matrix, bias], form=form, start=1, precondition_frequency=1)
    plain = nn.Parameter(torch.ones(24))
    adam = torch.optim.Adam([plain], betas=(0.9, 0.999), lr=1e-3)
    for gradient in gradients((24,), 5):
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
    """Transposed, and channels last."""
    for shape, layout in (
        ((6, 4), lambda t: t.T.contiguous().T),
        ((4, 3, 5, 2), lambda t: t.to(memory_format=torch.channels_last)),
    ):
        plain, other, steps = parameter(shape), parameter(shape), gradients(shape, 6)
        other.data = layout(other.data)
        assert not other.is_contiguous()
        settings: dict[str, Any] = {"lr": 0.1, "precondition_frequency": 2, "max_preconditioner_dim": 6}
        expected = taken(plain, Shampoo([plain], **settings), steps)
        assert torch.equal(taken(other, Shampoo([other], **settings), [layout(step) for step in steps]), expected)


def test_half_precision_has_states_in_fp32() -> None:
    weights = parameter((6, 4), torch.bfloat16)
    optimizer = Shampoo([weights], lr=0.1, precondition_frequency=2)
    taken(weights, optimizer, gradients((6, 4), 5))
    assert weights.dtype == torch.bfloat16
    assert {each.dtype for each in optimizer.state[weights].values()} == {torch.float32}


def test_a_bad_gradient_in_one_group_changes_nothing_in_another() -> None:
    first, second = parameter((4, 4)), parameter((5, 5))
    optimizer = Shampoo([{"params": [("v", first)]}, {"params": [("w", second)]}])
    first.grad, second.grad = torch.ones_like(first), torch.full_like(second, math.nan)
    before = str(optimizer.state_dict()["state"])
    with pytest.raises(DivergedError, match="parameter 'w': its gradient has numbers"):
        optimizer.step()
    assert str(optimizer.state_dict()["state"]) == before


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_is_named_and_changes_nothing(bad: float) -> None:
    weights = parameter((6, 4))
    optimizer = Shampoo([("tower.0.weight", weights)], max_preconditioner_dim=4)
    taken(weights, optimizer, gradients((6, 4), 3))
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


def test_factors_that_overflow_are_named() -> None:
    weights = parameter((6, 4), torch.float32)
    optimizer = Shampoo([weights], precondition_frequency=1, max_preconditioner_dim=6)
    weights.grad = torch.full((6, 4), 1e30)
    with pytest.raises(DivergedError, match=r"parameter '0\.0': its matrix of second moments of dimension 0"):
        optimizer.step()


def test_a_root_that_fails_keeps_the_last_three_times(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    weights = parameter((6, 4))
    optimizer = Shampoo([("w", weights)], precondition_frequency=1, max_preconditioner_dim=6, form="roots")
    steps = gradients((6, 4), 8)
    taken(weights, optimizer, steps[:2])
    held = optimizer.state[weights]["0/root_0"].clone()

    def failing(*_: Any) -> Tensor:
        raise RootError("eigenvalues do not converge")

    with monkeypatch.context() as patched:
        patched.setattr("ziggurat.optim.shampoo.roots.inverse_root", failing)
        taken(weights, optimizer, steps[2:5])
        assert torch.equal(optimizer.state[weights]["0/root_0"], held)
        assert (
            "parameter 'w', dimension 0: eigenvalues do not converge; the last one is kept (3 of 3 times)"
            in caplog.text
        )
        with pytest.raises(
            DivergedError, match=r"'w', dimension 0: eigenvalues do not converge; for the 4th time running"
        ):
            taken(weights, optimizer, steps[5:6])
    taken(weights, optimizer, steps[6:])
    assert not torch.equal(optimizer.state[weights]["0/root_0"], held)


def test_a_sparse_gradient_is_refused() -> None:
    table = nn.EmbeddingBag(10, 4, sparse=True)
    table(torch.tensor([[1, 2]])).sum().backward()
    with pytest.raises(ConfigError, match=r"the gradient of parameter 'weight' is sparse"):
        Shampoo(table.named_parameters()).step()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": 0}, r"lr"),
        ({"betas": (0.9, 1.1)}, r"betas\.1"),
        ({"graft": "adamm"}, r"graft"),
        ({"max_preconditioner_dim": 1}, r"max_preconditioner_dim"),
        ({"precondition_frequency": 0}, r"precondition_frequency"),
        ({"statistics_frequency": 21}, r"21 steps are more than the 20 until the first roots"),
        ({"late": 20}, r"late: 20 steps are not fewer than the precondition_frequency, 20"),
        ({"exponents": {2: [0.5]}}, r"2 dimensions need 2 numbers, not 1"),
        ({"nesterov": True}, r"there is no momentum"),
        ({"lr": math.inf}, r"lr"),
        ({"root": "newton", "exponents": {2: [0.4, 0.4]}}, r"newton finds roots of whole numbers"),
        ({"form": "eigenbasis", "root": "newton"}, r"newton finds no eigenvectors"),
        ({"presondition_frequency": 3}, r"did you mean 'precondition_frequency'"),
    ],
    ids=str,
)
def test_bad_settings_are_explained(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Shampoo([parameter((2, 2))], **settings)


def test_whole_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"parameter '0\.0' is torch\.int64"):
        Shampoo([torch.zeros(3, dtype=torch.int64)])


def test_a_state_of_other_settings_is_refused() -> None:
    saved = Shampoo([parameter((6, 4))]).state_dict()
    for settings, words in (
        ({"graft": "sgd"}, r"graft, \{.*'adam'.*\} there, is \{'name': 'sgd'\} here"),
        ({"graft": "rmsprop"}, "graft, "),
        ({"max_preconditioner_dim": 4}, "max_preconditioner_dim, 128 there, is 4 here"),
        ({"form": "roots"}, "form, 'eigenbasis' there, is 'roots' here"),
    ):
        with pytest.raises(ConfigError, match=words):
            Shampoo([parameter((6, 4))], **settings).load_state_dict(saved)
    other = Shampoo([parameter((6, 4)), parameter((5, 5))])
    before = copy.deepcopy(other.state_dict()["state"])
    with pytest.raises(ConfigError, match=r"'0\.1' is of other settings: 0/basis_1 is"):
        other.load_state_dict(Shampoo([parameter((6, 4)), parameter((7, 7))]).state_dict())
    assert str(before) == str(other.state_dict()["state"])  # nothing of it was taken
    with pytest.raises(ConfigError, match="of other groups of parameters"):
        Shampoo([parameter((6, 4)), parameter((2,))]).load_state_dict(saved)


def test_a_state_brings_its_learning_rate_and_leaves_how_often_roots_are_taken() -> None:
    saved = Shampoo([parameter((6, 4))], lr=0.5, precondition_frequency=2, graft={"name": "adam", "beta2": 0.9})
    ours = Shampoo([parameter((6, 4))], lr=0.1, precondition_frequency=7)
    ours.load_state_dict(saved.state_dict())
    (group,) = ours.param_groups
    assert (group["lr"], group["precondition_frequency"], group["graft"]["beta2"]) == (0.5, 7, 0.999)


@pytest.mark.parametrize("way", ["copied", "pickled"])
def test_a_copy_goes_on_by_itself(way: str) -> None:
    weights, steps = [parameter((6, 4)), parameter((5,))], [gradients((6, 4), 8), gradients((5,), 8)]
    optimizer = Shampoo([{"params": [("w", weights[0])]}, {"params": [("b", weights[1])], "lr": 0.5}], lr=0.1)

    def go(some: list[nn.Parameter], by: Shampoo, first: int, last: int) -> None:
        for step in range(first, last):
            for each, every in zip(some, steps, strict=True):
                each.grad = every[step]
            by.step()

    go(weights, optimizer, 0, 4)
    pair = (weights, optimizer)
    copied, other = copy.deepcopy(pair) if way == "copied" else pickle.loads(pickle.dumps(pair))
    go(copied, other, 4, 8)
    assert not torch.equal(copied[0], weights[0])
    go(weights, optimizer, 4, 8)
    assert all(torch.equal(mine, one) for mine, one in zip(copied, weights, strict=True))
    assert [group["lr"] for group in other.param_groups] == [0.1, 0.5]
    assert other.param_groups[0]["param_names"] == ["w"]


@pytest.mark.parametrize(
    ("key", "value"), [("precondition_frequency", 9), ("momentum", 0.9), ("graft", {"name": "sgd"}), ("vectors", True)]
)
def test_what_cannot_change_later_is_refused(key: str, value: Any) -> None:
    weights = parameter((6, 4))
    optimizer = Shampoo([weights])
    taken(weights, optimizer, gradients((6, 4), 1))
    optimizer.param_groups[0][key] = value
    with pytest.raises(ConfigError, match=rf"{key} was changed to .*, and states are of"):
        taken(weights, optimizer, gradients((6, 4), 1))


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"weight_decai": 0.1}, "did you mean 'weight_decay'"),
        ({"communicate": "bf16"}, "communicate is 'bf16' in group 1 and 'fp32' in group 0"),
    ],
)
def test_bad_groups_are_explained(group: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Shampoo([{"params": [parameter((2, 2))]}, {"params": [parameter((3, 3))], **group}])


def test_corrected_decay_knows_the_highest_learning_rate_so_far() -> None:
    """As where a schedule begins above the rate that the optimizer was made with."""
    weights = nn.Parameter(torch.full((2, 2), 3.0))
    optimizer = Shampoo([weights], lr=0.001, weight_decay=0.5, decay="corrected")
    for lr, shrunk in ((0.1, 1 - 0.1 * 0.5), (0.05, 1 - 0.05 * 0.5 * 0.5)):
        before = weights.detach().clone()
        optimizer.param_groups[0]["lr"] = lr
        weights.grad = torch.zeros(2, 2)
        optimizer.step()
        torch.testing.assert_close(weights.detach(), before * shrunk)


def test_hooks_of_loading_are_called() -> None:
    optimizer, called = Shampoo([parameter((2, 2))]), list[str]()
    optimizer.register_load_state_dict_pre_hook(lambda *_: called.append("before"))
    optimizer.register_load_state_dict_post_hook(lambda *_: called.append("behind"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert called == ["before", "behind"]


def test_late_roots_take_as_many_threads_as_others() -> None:
    """Whose last bits depend on it; a thread begins with as many as there are cores."""
    before, steps = torch.get_num_threads(), gradients((70, 70), 12)
    try:
        torch.set_num_threads(1)
        found: list[Tensor] = []
        for stop in (0, 7):
            weights = parameter((70, 70), torch.float32)
            optimizer = Shampoo([weights], precondition_frequency=4, late=2)
            taken(weights, optimizer, steps[:stop])
            resumed = Shampoo([weights], precondition_frequency=4, late=2)
            resumed.load_state_dict(optimizer.state_dict())
            found.append(taken(weights, resumed, steps[stop:]).clone())
        assert torch.equal(*found)
    finally:
        torch.set_num_threads(before)


def test_a_group_that_comes_late_is_refused() -> None:
    with pytest.raises(ConfigError, match="made already"):
        Shampoo([parameter((2, 2))]).add_param_group({"params": [parameter((2, 2))]})


def test_groups_have_settings_of_their_own() -> None:
    matrix, vector = parameter((6, 4)), parameter((6,))
    optimizer = Shampoo([{"params": [matrix]}, {"params": [vector], "graft": "sgd", "lr": 0.5}], lr=0.1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.5]
    assert "0/graft" in optimizer.state[matrix]
    assert "0/graft" not in optimizer.state[vector]


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
