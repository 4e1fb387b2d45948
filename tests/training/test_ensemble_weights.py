"""The choice of members and weights: on problems whose best mixture is known, and in corner cases."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ziggurat.training.ensemble.weights import choose, equal


def log_loss(labels_B: Tensor) -> Callable[[Tensor], float]:
    return lambda columns_BC: float(F.binary_cross_entropy_with_logits(columns_BC[:, 0], labels_B))


def noisy_members(noise: list[float], rows: int = 4000) -> tuple[list[Tensor], Tensor]:
    """Returns logits that are true ones and independent noise, and labels drawn from the true ones."""
    generator = torch.Generator().manual_seed(5)
    truth_B = torch.randn(rows, generator=generator)
    labels_B = torch.bernoulli(torch.sigmoid(truth_B), generator=generator)
    columns = [(truth_B + sd * torch.randn(rows, generator=generator))[:, None] for sd in noise]
    return columns, labels_B


def test_independent_members_share_the_weight_and_beat_each_of_them() -> None:
    columns, labels_B = noisy_members([1.0, 1.0, 1.0])
    chosen = choose(columns, log_loss(labels_B))
    assert math.fsum(chosen.weights_M) == pytest.approx(1)
    assert all(0.2 < weight < 0.45 for weight in chosen.weights_M)
    assert chosen.loss < min(chosen.losses_M) - 0.02
    mean_BC = sum(w * c.double() for w, c in zip(chosen.weights_M, columns, strict=True))
    assert isinstance(mean_BC, Tensor)
    assert log_loss(labels_B)(mean_BC.float()) == pytest.approx(chosen.loss, abs=1e-7)


def test_the_loss_is_that_of_the_best_mixture_on_a_grid() -> None:
    columns, labels_B = noisy_members([0.6, 1.0, 2.0])
    chosen = choose(columns, log_loss(labels_B))
    stacked_MB = torch.stack([each[:, 0] for each in columns])
    shares = [i / 20 for i in range(21)]
    grid = [(a, b, 1 - a - b) for a, b in itertools.product(shares, shares) if a + b <= 1]
    best = min(log_loss(labels_B)((torch.tensor(each) @ stacked_MB)[:, None]) for each in grid)
    assert chosen.loss <= best + 1e-5


def test_useless_and_broken_members_get_no_weight() -> None:
    columns, labels_B = noisy_members([0.3, 0.3])
    columns += [noisy_members([30.0])[0][0], torch.full_like(columns[0], torch.nan)]
    chosen = choose(columns, log_loss(labels_B))
    assert chosen.weights_M[2:] == (0, 0)
    assert chosen.losses_M[3] == math.inf


def test_members_that_are_alike_leave_the_first_alone() -> None:
    columns, labels_B = noisy_members([0.5])
    assert choose(columns * 3, log_loss(labels_B)).weights_M == (1, 0, 0)


def test_it_is_never_worse_than_the_best_member_and_repeats() -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        columns = [torch.from_numpy(random.normal(size=(30, 2)).astype(np.float32)) for _ in range(4)]
        target_BC = torch.from_numpy(random.normal(size=(30, 2)).astype(np.float32))
        loss = lambda columns_BC, to=target_BC: float((columns_BC - to).square().mean())  # noqa: E731
        chosen = choose(columns, loss)
        assert chosen.loss <= min(chosen.losses_M)
        assert chosen == choose(columns, loss)


def test_equal_weights() -> None:
    columns, labels_B = noisy_members([0.5, 1.0, 3.0])
    found = equal(columns, log_loss(labels_B))
    assert found.weights_M == (1 / 3, 1 / 3, 1 / 3)
    assert found.loss == pytest.approx(log_loss(labels_B)(torch.stack(columns).mean(0)), abs=1e-6)
