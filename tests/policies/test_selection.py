"""The selection of a subset: against enumeration, and on cases that can be seen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ziggurat.core.errors import ConfigError
from ziggurat.policies.actions import Categorical, Floats, Gaussian, divergence_matrix
from ziggurat.policies.selection import mean_divergence, select


def drawn(seed: int, count: int) -> tuple[list[float], Floats]:
    draw = np.random.default_rng(seed)
    divergence = draw.exponential(size=(count, count))
    divergence = divergence + divergence.T
    np.fill_diagonal(divergence, 0)
    return draw.normal(50, 20, count).tolist(), divergence


def worth(returns: list[float], divergence: Floats, members: tuple[int, ...], weight: float) -> float:
    """The objective, written out with a vector of weights."""
    values = np.array(returns)
    z = (values - values.mean()) / values.std()
    w = np.zeros(len(values))
    w[list(members)] = 1
    return float(w @ z + weight * (w @ divergence @ w) / divergence.sum())


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000), count=st.integers(2, 8), size=st.integers(1, 8),
    weight=st.sampled_from([0, 0.5, 5, 50]), tolerance=st.sampled_from([0.0, 15.0, np.inf]),
)  # fmt: skip
def test_the_best_of_all_subsets_is_taken(seed: int, count: int, size: int, weight: float, tolerance: float) -> None:
    returns, divergence = drawn(seed, count)
    admitted = [place for place in range(count) if max(returns) - returns[place] <= tolerance]
    size_taken = min(size, len(admitted))
    best = max(
        itertools.combinations(admitted, size_taken),
        key=lambda members: worth(returns, divergence, members, weight),
    )
    found = select(returns, divergence, size, weight, tolerance)
    assert found.exact
    assert found.members == best
    assert found.value == pytest.approx(worth(returns, divergence, best, weight))
    pairs = [divergence[i, j] for i, j in itertools.combinations(best, 2)]
    assert found.diversity == pytest.approx(np.mean(pairs) if pairs else 0.0)


def test_without_diversity_the_best_are_taken() -> None:
    returns, divergence = drawn(3, 9)
    found = select(returns, divergence, 4, 0.0, np.inf)
    assert found.members == tuple(sorted(np.argsort(returns)[-4:].tolist()))


def test_a_large_weight_takes_those_farthest_apart() -> None:
    returns, divergence = drawn(4, 9)
    farthest = max(itertools.combinations(range(9), 3), key=lambda members: mean_divergence(divergence, members))
    assert select(returns, divergence, 3, 1e6, np.inf).members == farthest


@pytest.mark.parametrize("weight", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("seed", range(5))
def test_greedy_additions_and_exchanges_come_close_to_the_best(seed: int, weight: float) -> None:
    returns, divergence = drawn(seed, 12)
    found = select(returns, divergence, 4, weight, np.inf)
    best = max(worth(returns, divergence, each, weight) for each in itertools.combinations(range(12), 4))
    assert not found.exact
    assert found.value == pytest.approx(worth(returns, divergence, found.members, weight))
    assert found.value >= best - 0.02 * abs(best)
    if weight == 0:
        assert found.members == tuple(sorted(np.argsort(returns)[-4:].tolist()))


def test_equal_returns_and_no_divergence_take_the_first() -> None:
    assert select([1.0, 1.0, 1.0], np.zeros((3, 3)), 2, 1.0, 0.0).members == (0, 1)


def test_a_tolerance_of_the_whole_range_keeps_the_worst() -> None:
    draw = np.random.default_rng(0)
    pairs = [[160.6, 500.0], *draw.normal(0, 100, (200, 2)).tolist()]
    for returns in pairs:
        assert select(returns, np.zeros((2, 2)), 2, 0.0, max(returns) - min(returns)).members == (0, 1)
    assert select([160.6, 500.0], np.zeros((2, 2)), 2, 0.0, 339.3).members == (1,)


@pytest.mark.parametrize("arguments", [(0, 1.0, 1.0), (1, -1.0, 1.0), (1, 1.0, -1.0), (1, 1.0, np.nan)])
def test_what_is_no_selection_is_refused(arguments: tuple[int, float, float]) -> None:
    with pytest.raises(ConfigError):
        select([1.0, 2.0], np.zeros((2, 2)), *arguments)
    with pytest.raises(ConfigError, match="finite"):
        select([1.0, np.nan], np.zeros((2, 2)), 1, 0.0, 0.0)


def test_divergences_are_those_of_torch() -> None:
    import torch
    from torch.distributions import Categorical as TorchCategorical
    from torch.distributions import Independent, Normal, kl_divergence

    draw = np.random.default_rng(0)
    logits = draw.normal(size=(3, 20, 4))
    ours = divergence_matrix([Categorical.of_logits(each) for each in logits])
    theirs = [TorchCategorical(logits=torch.tensor(each)) for each in logits]
    for i, j in itertools.product(range(3), repeat=2):
        both = kl_divergence(theirs[i], theirs[j]) + kl_divergence(theirs[j], theirs[i])
        assert ours[i, j] == pytest.approx(float(both.mean()) / 2, abs=1e-12)
    means, stds = draw.normal(size=(2, 20, 3)), draw.uniform(0.1, 2, (2, 20, 3))
    ours = divergence_matrix([Gaussian(m, s, m) for m, s in zip(means, stds, strict=True)])
    one, other = (Independent(Normal(torch.tensor(m), torch.tensor(s)), 1) for m, s in zip(means, stds, strict=True))
    expected = float((kl_divergence(one, other) + kl_divergence(other, one)).mean()) / 2
    assert ours.tolist() == [[0, pytest.approx(expected)], [pytest.approx(expected), 0]]
    never = Categorical(np.log(np.array([[1.0, 1e-300]])))
    assert np.isfinite(divergence_matrix([never, Categorical.of_logits(np.zeros((1, 2)))])).all()


def test_divergences_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="give a finite number for each pair"):
        select([1.0, 2.0], np.array([[0.0, np.nan], [np.nan, 0.0]]), 2, 1.0, 1.0)
    with pytest.raises(ConfigError, match="divergences of 3 snapshots"):
        select([1.0, 2.0, 3.0], np.zeros((2, 2)), 2, 1.0, 1.0)
    with pytest.raises(ConfigError, match="λ is finite"):
        select([1.0, 2.0], np.zeros((2, 2)), 2, np.nan, 1.0)
