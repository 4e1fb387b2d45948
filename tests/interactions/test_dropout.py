"""Dropout drops its share, keeps the mean, and repeats with the seed."""

from __future__ import annotations

import pytest
import torch

from ziggurat.interactions.dropout import Dropout, dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rate", [0.0001, 0.2, 0.5, 0.97])
def test_it_drops_its_share_and_keeps_the_mean(rate: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    dropped = dropout(torch.ones(1001, 999, dtype=dtype), rate, training=True).double()
    assert (dropped == 0).double().mean().item() == pytest.approx(rate, abs=5 * (rate * (1 - rate) / 1e6) ** 0.5 + 1e-5)
    assert dropped.unique().numel() == 2
    assert dropped.max().item() == pytest.approx(1 / (1 - rate), rel=0.005 if dtype == torch.bfloat16 else 1e-3)


def test_neighbours_are_dropped_independently() -> None:
    torch.manual_seed(0)
    kept = dropout(torch.ones(2**20), 0.5, training=True) > 0
    for distance in range(1, 9):
        both = (kept[distance:] & kept[:-distance]).double().mean().item()
        assert both == pytest.approx(0.25, abs=0.003)


def test_a_seed_repeats_it_and_the_next_call_differs() -> None:
    drawn: list[torch.Tensor] = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn += [dropout(torch.ones(33, 7), 0.5, training=True) for _ in range(2)]
    assert torch.equal(drawn[0], drawn[2])
    assert torch.equal(drawn[1], drawn[3])
    assert not torch.equal(drawn[0], drawn[1])


def test_gradients_pass_where_numbers_did() -> None:
    inputs = torch.randn(50, 3, requires_grad=True)
    outputs = Dropout(0.3)(inputs)
    outputs.sum().backward()
    assert inputs.grad is not None
    torch.testing.assert_close(inputs.grad * inputs.detach(), outputs.detach())


def test_outside_training_nothing_changes_and_nothing_is_drawn() -> None:
    inputs = torch.randn(4, 4)
    state = torch.get_rng_state()
    assert Dropout(0.9).eval()(inputs) is inputs
    assert dropout(inputs, 0.0, training=True) is inputs
    assert torch.equal(torch.get_rng_state(), state)
