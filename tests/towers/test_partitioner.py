"""The tower partitioner: affinities, the map of features, balanced k-means, and groups that are found again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from ziggurat.towers.partitioner.affinity import Affinity, FieldMeans
from ziggurat.towers.partitioner.balance import LOAD_LIMIT, Balance
from ziggurat.towers.partitioner.balanced_kmeans import balanced_kmeans
from ziggurat.towers.partitioner.coordinates import coordinates
from ziggurat.towers.partitioner.partition import Floats, partition_features


def measured(emb_BKD: torch.Tensor, feature_of: list[int], batches: int = 1) -> Floats:
    means = FieldMeans(len(feature_of), emb_BKD.shape[2])
    parts = emb_BKD.chunk(batches)
    for part in parts:
        means.update(part)
    affinity = Affinity(feature_of, means.compute())
    for part in parts:
        affinity.update(part)
    return affinity.compute(max(feature_of) + 1)


def grouped(groups: np.ndarray, within: float = 0.6, between: float = 0.2, noise: float = 0.1, seed: int = 0) -> Floats:
    """Returns affinities that are higher within groups."""
    random = np.random.default_rng(seed)
    affinity_FF = np.where(groups[:, None] == groups[None], within, between)
    affinity_FF = affinity_FF + np.triu(random.normal(scale=noise, size=affinity_FF.shape), 1)
    affinity_FF = np.triu(affinity_FF, 1) + np.triu(affinity_FF, 1).T
    np.fill_diagonal(affinity_FF, 1.0)
    return affinity_FF.clip(0, 1)


def singles(features: int) -> list[list[int]]:
    return [[feature] for feature in range(features)]


def names(features: int) -> list[str]:
    return [f"f{feature}" for feature in range(features)]


def test_affinity_is_the_mean_of_the_absolute_cosine() -> None:
    """Against a loop over rows and pairs; batches do not matter."""
    emb_BKD = torch.randn(50, 4, 6, generator=torch.Generator().manual_seed(0)) + torch.tensor([3.0, 0, 0, 0, 0, 0])
    emb_BKD[::5, 2] = 0  # an empty bag
    means_KD = torch.stack([emb_BKD[emb_BKD[:, k].any(1), k].mean(0) for k in range(4)])
    shared_D = torch.linalg.svd(means_KD)[2][0]
    own_BKD = emb_BKD - means_KD
    own_BKD -= (own_BKD @ shared_D)[:, :, None] * shared_D
    expected = np.eye(4)
    for one, other in itertools.combinations(range(4), 2):
        cosines = [
            abs(float(torch.cosine_similarity(own_KD[one], own_KD[other], dim=0)))
            for row, own_KD in zip(emb_BKD, own_BKD, strict=True)
            if row[one].any() and row[other].any()
        ]
        expected[one, other] = expected[other, one] = np.mean(cosines)
    for batches in (1, 7):
        np.testing.assert_allclose(measured(emb_BKD, [0, 1, 2, 3], batches), expected, atol=1e-6)


def test_a_direction_that_all_features_share_is_no_affinity() -> None:
    """Products with the mean of another feature tell what an id tells alone: no interaction."""
    random = torch.Generator().manual_seed(1)
    vectors = torch.randn(2000, 4, 2, generator=random)
    emb_BKD = torch.zeros(2000, 4, 8)
    emb_BKD[:, :2, 0:2], emb_BKD[:, 2:, 2:4] = vectors[:, :2], vectors[:, 2:]
    shared = emb_BKD + (5 + torch.randn(2000, 4, 1, generator=random)) * torch.eye(8)[7]
    found = measured(shared, [0, 1, 2, 3])
    assert found[0, 1] > 0.5
    assert found[2, 3] > 0.5
    assert found[:2, 2:].max() < 0.05
    assert measured(emb_BKD + torch.randn(2000, 4, 1, generator=random) * torch.eye(8)[7], [0, 1, 2, 3])[0, 2] > 0.1


def test_a_feature_of_several_fields_has_their_mean() -> None:
    emb_BKD = torch.randn(40, 3, 5, generator=torch.Generator().manual_seed(2))
    fields, features = measured(emb_BKD, [0, 1, 2]), measured(emb_BKD, [0, 1, 1])
    assert features[0, 1] == pytest.approx((fields[0, 1] + fields[0, 2]) / 2)
    assert features[1, 1] == 1


def test_the_map_keeps_distances_that_the_plane_can_hold() -> None:
    places = np.random.default_rng(0).normal(size=(12, 2))
    distances = np.linalg.norm(places[:, None] - places[None], axis=2)
    maps, errors = coordinates(distances, 4, seed=3)
    best = maps[int(errors.argmin())]
    np.testing.assert_allclose(np.linalg.norm(best[:, None] - best[None], axis=2), distances, atol=0.01)
    again, _ = coordinates(distances, 4, seed=3)
    np.testing.assert_array_equal(maps, again)
    assert (coordinates(distances, 4, seed=4)[0] != maps).any()
    assert coordinates(np.zeros((1, 1)), 2, seed=0)[0].shape == (2, 1, 2)


@pytest.mark.parametrize(("features", "towers"), [(12, 4), (13, 4), (26, 8), (5, 5), (7, 1)])
def test_sizes_differ_by_one_at_most(features: int, towers: int) -> None:
    places = np.random.default_rng(features).normal(size=(features, 2))
    balance = Balance(towers, np.ones(features, np.int64), np.ones(features))
    sizes = np.bincount(balanced_kmeans(places, balance, seed=0), minlength=towers)
    assert sizes.max() - sizes.min() <= (features % towers > 0)
    assert sizes.sum() == features


def test_clusters_of_equal_size_are_found_again() -> None:
    truth = np.repeat(np.arange(4), 5)
    centres = np.array([[0, 0], [0, 4], [4, 0], [4, 4]])
    places = centres[truth] + np.random.default_rng(0).normal(scale=0.3, size=(20, 2))
    balance = Balance(4, np.ones(20, np.int64), np.ones(20))
    found = [balanced_kmeans(places, balance, seed) for seed in range(5)]
    assert max(adjusted_rand_score(truth, each) for each in found) == 1.0


def test_a_change_for_the_better_is_the_best_of_all_moves_and_swaps() -> None:
    """The result of the search cannot be improved by any move or swap, each judged by its cost from scratch."""
    random = np.random.default_rng(5)
    units, towers = 11, 3
    pairs = np.triu(random.random((units, units)), 1)
    pairs = (pairs + pairs.T) / pairs.sum()
    balance = Balance(towers, random.integers(1, 3, units), random.random(units) + 0.1)
    start = random.integers(0, towers, units)
    found = balance.improve(start, np.zeros((units, towers)), pairs)
    cost = balance.cost(found, pairs)
    assert cost < balance.cost(start, pairs)
    for unit, tower in itertools.product(range(units), range(towers)):
        other = found.copy()
        other[unit] = tower
        assert balance.cost(other, pairs) >= cost - 1e-8
    for one, two in itertools.combinations(range(units), 2):
        other = found.copy()
        other[[one, two]] = found[[two, one]]
        assert balance.cost(other, pairs) >= cost - 1e-8


@pytest.mark.parametrize(("groups", "size"), [(2, 8), (4, 6), (8, 3)])
def test_groups_are_found_again(groups: int, size: int) -> None:
    """Eight groups are more than the plane can hold at equal distances."""
    truth = np.random.default_rng(groups).permutation(np.repeat(np.arange(groups), size))
    features = groups * size
    for seed in range(2):
        affinity = grouped(truth, seed=seed)
        found = partition_features(names(features), affinity, singles(features), [1.0] * features, groups, seed=5)
        assert adjusted_rand_score(truth, found.tower_F) == 1.0
        assert found.load_ratio == 1.0
        within, between = found.affinities
        assert within == pytest.approx(0.6, abs=0.05)
        assert between == pytest.approx(0.2, abs=0.05)


def test_equal_seeds_give_equal_towers() -> None:
    affinity = grouped(np.repeat(np.arange(3), 3), noise=0.4)
    first, again = (partition_features(names(9), affinity, singles(9), [1.0] * 9, 3, seed=2) for _ in range(2))
    assert again.tower_F == first.tower_F
    np.testing.assert_array_equal(again.places_F2, first.places_F2)


def test_diverse_towers_hold_what_interacts_least() -> None:
    truth = np.repeat(np.arange(3), 3)
    found = partition_features(names(9), grouped(truth), singles(9), [1.0] * 9, 3, diverse=True)
    within, between = found.affinities
    assert within < between
    assert all(len({int(truth[int(name[1:])]) for name in tower}) == 3 for tower in found.towers)


def test_loads_are_balanced_where_possible() -> None:
    """Two features of a group are heavy: they are parted, though they interact."""
    truth = np.repeat(np.arange(2), 4)
    loads = [8.0, 8.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    found = partition_features(names(8), grouped(truth), singles(8), loads, 2)
    assert found.load_ratio <= LOAD_LIMIT
    assert found.tower_F[0] != found.tower_F[1]
    assert sum(found.loads) == pytest.approx(sum(loads))
    heavy = partition_features(names(8), grouped(truth), singles(8), [100.0, *loads[1:]], 2)
    assert heavy.load_ratio == pytest.approx(2 * 103 / 114)  # the heaviest with the three lightest: no less is possible
    assert {len(tower) for tower in heavy.towers} == {4}


@pytest.mark.parametrize(
    ("towers", "size", "heavy", "load"), [(4, 2, 4, 5.0), (4, 6, 12, 4.0)], ids=["pairs", "groups of six"]
)
def test_towers_that_are_equally_heavy_are_all_unloaded(towers: int, size: int, heavy: int, load: float) -> None:
    """Two towers hold all that is heavy: unloading one of them does not lower the greatest load."""
    truth = np.repeat(np.arange(towers), size)
    loads = [load] * heavy + [1.0] * (towers * size - heavy)
    found = partition_features(names(towers * size), grouped(truth), singles(towers * size), loads, towers)
    assert found.load_ratio == pytest.approx(1.0)
    assert {len(tower) for tower in found.towers} == {size}


def test_features_of_one_table_stay_together() -> None:
    truth = np.repeat(np.arange(2), 4)
    units = [[0, 7], [1], [2], [3], [4], [5], [6]]
    found = partition_features(names(8), grouped(truth), units, [1.0] * 8, 2)
    assert found.tower_F[0] == found.tower_F[7]
    assert {len(tower) for tower in found.towers} == {4}


def test_towers_are_numbered_by_their_first_feature_and_cover_all() -> None:
    truth = np.array([2, 2, 0, 0, 1, 1])
    found = partition_features(names(6), grouped(truth), singles(6), [0.0] * 6, 3)
    assert found.towers == (("f0", "f1"), ("f2", "f3"), ("f4", "f5"))
    single = partition_features(names(6), grouped(truth), singles(6), [1.0] * 6, 1)
    assert single.tower_F == (0,) * 6
    assert np.isnan(single.affinities[1])
