"""Ranks over data sets: against Demšar's worked example, scipy, and outcomes that are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ziggurat.metrics.method_ranks import alike, critical_difference, friedman, ranks, signed_rank


def test_the_highest_score_has_rank_one_and_ties_share_their_ranks() -> None:
    scores = np.array([[0.9, 0.8, 0.8, 0.1], [0.5, 0.5, 0.5, 0.5], [0.1, 0.2, 0.3, 0.4]])
    expected = np.stack([stats.rankdata(-row) for row in scores])
    np.testing.assert_array_equal(ranks(scores), expected)
    assert ranks(scores)[0].tolist() == [1.0, 2.5, 2.5, 4.0]
    with pytest.raises(ValueError, match="not finite"):
        ranks(np.array([[1.0, np.nan]]))


@pytest.mark.parametrize("digits", [1, 6])
def test_friedmans_statistic_is_scipys(digits: int) -> None:
    scores = np.random.default_rng(digits).random((14, 4)).round(digits)  # one digit: with ties
    found = friedman(ranks(scores))
    chi_square, _ = stats.friedmanchisquare(*scores.T)
    assert found.chi_square == pytest.approx(chi_square)
    assert found.f == pytest.approx(13 * chi_square / (14 * 3 - chi_square))
    assert found.p == pytest.approx(stats.f.sf(found.f, 3, 39))


def test_sets_that_rank_alike_and_methods_that_tie_are_told_apart() -> None:
    alone = friedman(np.tile([1.0, 2.0, 3.0], (5, 1)))
    assert (alone.f, alone.p) == (np.inf, 0.0)
    assert friedman(np.full((5, 3), 2.0)).p == 1.0


def test_the_critical_difference_is_that_of_demsars_example() -> None:
    # Demšar (2006), section 3.2.3: four methods on 14 sets; q is 2.569 at .05 and 2.291 at .10.
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert critical_difference(4, 14, 0.10) == pytest.approx(1.12, abs=0.005)
    assert critical_difference(2, 6) == pytest.approx(1.960 * np.sqrt(6 / 36), abs=1e-3)


def test_groups_are_the_largest_ones_within_the_difference() -> None:
    assert alike([3.1, 2.0, 2.9, 1.9], 1.05) == [(3, 1, 2), (2, 0)]
    assert alike([1.0, 1.5, 2.4, 4.0], 1.0) == [(0, 1), (1, 2)]
    assert alike([1.0, 3.0], 1.0) == []
    assert alike([2.0, 1.0, 3.0], 5.0) == [(1, 0, 2)]


def test_the_signed_rank_test_knows_clear_outcomes() -> None:
    draw = np.random.default_rng(0)
    ahead = signed_rank(draw.normal(0.05, 0.01, 30), 0.005)
    assert ahead.above > 0.999
    behind = signed_rank(-draw.normal(0.05, 0.01, 30), 0.005)
    assert behind.below > 0.999
    alike_ = signed_rank(draw.normal(0.0, 0.001, 30), 0.005)
    assert alike_.equal > 0.999
    unsure = signed_rank(draw.normal(0.0, 0.05, 30), 0.0)
    assert 0.01 < unsure.above < 0.99
    assert unsure.below + unsure.equal + unsure.above == pytest.approx(1.0)


def test_without_a_region_the_signed_rank_test_agrees_with_wilcoxons() -> None:
    """The posterior is about the chance that the mean of two differences is above 0, which Wilcoxon's test is about."""
    differences = np.array([0.8, 0.3, -0.2, 0.5, 0.1, -0.1, 0.4, 0.6, 0.2, 0.35])
    found = signed_rank(differences, 0.0)
    p = stats.wilcoxon(differences, alternative="greater").pvalue
    assert found.above == pytest.approx(1 - p, abs=0.03)
