"""Saved states of Shampoo in one process: resuming, copying, and states that are refused."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from dense_cases import gradients, parameter, small_model, train, weights_after
from torch import Tensor, nn

from ziggurat.core.errors import ConfigError
from ziggurat.optim.shampoo.shampoo import Shampoo


@pytest.mark.parametrize("late", [0, 2])
@pytest.mark.parametrize("settings", [{}, {"root": "qr"}, {"form": "roots"}, {"statistics_frequency": 3}], ids=str)
def test_resuming_at_any_step_equals_training_through(settings: dict[str, Any], late: int) -> None:
    """This includes steps between the computation of late roots and their first use."""

    def make(model: nn.Module) -> Shampoo:
        return Shampoo(model.named_parameters(), lr=0.05, precondition_frequency=4, late=late, **settings)

    whole = small_model()
    straight = train(whole, make(whole), 0, 16)
    for stop in range(3, 14):
        first = small_model()
        optimizer = make(first)
        losses = train(first, optimizer, 0, stop)
        file = io.BytesIO()
        torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, file)
        train(first, optimizer, stop, stop + 3)  # must not affect the saved state
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        second = small_model()
        second.load_state_dict(saved["model"])
        resumed = make(second)
        resumed.load_state_dict(saved["optimizer"])
        assert losses + train(second, resumed, stop, 16) == straight, stop


def test_loading_an_earlier_state_repeats_its_steps() -> None:
    """Values cached from step to step must follow the loaded state."""
    model = small_model()
    optimizer = Shampoo(model.named_parameters(), lr=0.05, precondition_frequency=4)
    train(model, optimizer, 0, 17)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    straight = train(model, optimizer, 17, 23)
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    assert train(model, optimizer, 17, 23) == straight


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [20, 50, 100]),
        ({"precondition_frequency": 4}, [4, 8, 12]),
        (
            {"precondition_frequency": 4, "late": 2},
            [4, 10, 14],
        ),  # the first roots at once, those of steps 8 and 12 two steps later
        ({"precondition_frequency": 4, "start": 6}, [6, 8, 12]),
    ],
    ids=str,
)
def test_roots_change_at_the_configured_steps(settings: dict[str, Any], expected: list[int]) -> None:
    weights = parameter((6, 4))
    optimizer = Shampoo([weights], lr=0.0001, max_preconditioner_dim=6, form="roots", **settings)
    changes, before = list[int](), optimizer.state[weights]["0/root_0"].clone()
    for step, gradient in enumerate(gradients((6, 4), expected[-1]), 1):
        weights_after(weights, optimizer, [gradient])
        now = optimizer.state[weights]["0/root_0"].clone()
        if not torch.equal(now, before):
            changes.append(step)
        before = now
    assert changes == expected


def test_a_state_of_other_settings_is_refused() -> None:
    saved = Shampoo([parameter((6, 4))]).state_dict()
    for settings, message in (
        ({"graft": "sgd"}, r"graft, \{.*'adam'.*\} there, is \{'name': 'sgd'\} here"),
        ({"graft": "rmsprop"}, "graft, "),
        ({"max_preconditioner_dim": 4}, "max_preconditioner_dim, 128 there, is 4 here"),
        ({"form": "roots"}, "form, 'eigenbasis' there, is 'roots' here"),
    ):
        with pytest.raises(ConfigError, match=message):
            Shampoo([parameter((6, 4))], **settings).load_state_dict(saved)
    other = Shampoo([parameter((6, 4)), parameter((5, 5))])
    before = copy.deepcopy(other.state_dict()["state"])
    with pytest.raises(ConfigError, match=r"'0\.1' is of other settings: 0/basis_1 is"):
        other.load_state_dict(Shampoo([parameter((6, 4)), parameter((7, 7))]).state_dict())
    assert str(before) == str(other.state_dict()["state"])  # nothing was loaded
    with pytest.raises(ConfigError, match="of other groups of parameters"):
        Shampoo([parameter((6, 4)), parameter((2,))]).load_state_dict(saved)


def test_a_state_from_before_single_numbers_were_preconditioned_is_refused_with_what_to_do() -> None:
    settings: dict[str, Any] = {"graft": "none", "vectors": True, "form": "roots"}
    saved = Shampoo([parameter((6, 4)), parameter((1,))], **settings).state_dict()
    for key in ("0/factor_1", "0/root_1"):
        del saved["state"][1][key]
    with pytest.raises(ConfigError, match=r"'0\.1' is of other settings: 0/factor_1 is missing.*\n.*warm_start"):
        Shampoo([parameter((6, 4)), parameter((1,))], **settings).load_state_dict(saved)


def test_a_state_restores_the_learning_rate_but_not_the_root_frequency() -> None:
    saved = Shampoo([parameter((6, 4))], lr=0.5, precondition_frequency=2, graft={"name": "adam", "beta2": 0.9})
    ours = Shampoo([parameter((6, 4))], lr=0.1, precondition_frequency=7)
    ours.load_state_dict(saved.state_dict())
    (group,) = ours.param_groups
    assert (group["lr"], group["precondition_frequency"], group["graft"]["beta2"]) == (0.5, 7, 0.999)


@pytest.mark.parametrize("way", ["copied", "pickled"])
def test_a_copy_trains_independently(way: str) -> None:
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


def test_load_state_dict_calls_its_hooks() -> None:
    optimizer, called = Shampoo([parameter((2, 2))]), list[str]()
    optimizer.register_load_state_dict_pre_hook(lambda *_: called.append("before"))
    optimizer.register_load_state_dict_post_hook(lambda *_: called.append("after"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert called == ["before", "after"]


def test_late_roots_use_as_many_threads_as_the_caller() -> None:
    """The last bits depend on the number of threads, and a new thread starts with one for each core."""
    before, steps = torch.get_num_threads(), gradients((70, 70), 12)
    try:
        torch.set_num_threads(1)
        found: list[Tensor] = []
        for stop in (0, 7):
            weights = parameter((70, 70), torch.float32)
            optimizer = Shampoo([weights], precondition_frequency=4, late=2)
            weights_after(weights, optimizer, steps[:stop])
            resumed = Shampoo([weights], precondition_frequency=4, late=2)
            resumed.load_state_dict(optimizer.state_dict())
            found.append(weights_after(weights, resumed, steps[stop:]).clone())
        assert torch.equal(*found)
    finally:
        torch.set_num_threads(before)


def test_a_copy_keeps_changed_settings() -> None:
    """Here the learning rate is set to 0, and momentum is switched off."""
    weights, steps = parameter((6, 4)), gradients((6, 4), 6)
    optimizer = Shampoo([weights], lr=0.1, momentum=0.9)
    weights_after(weights, optimizer, steps[:3])
    optimizer.param_groups[0].update(lr=0.0, momentum=0.0)
    copied, other = copy.deepcopy((weights, optimizer))
    for some, by in ((weights, optimizer), (copied, other)):
        by.param_groups[0]["lr"] = 0.05
        weights_after(some, by, steps[3:])
    assert torch.equal(weights, copied)


def test_a_dictionary_that_is_not_a_state_is_refused() -> None:
    with pytest.raises(ConfigError, match="not the state of an optimizer"):
        Shampoo([parameter((2, 2))]).load_state_dict({})


def test_step_counts_may_be_plain_numbers() -> None:
    saved = Shampoo([parameter((2, 2))]).state_dict()
    ours = Shampoo([parameter((2, 2))])
    ours.load_state_dict({**saved, "state": {0: {**saved["state"][0], "step": 7}}})
    assert int(ours.state_dict()["state"][0]["step"]) == 7
