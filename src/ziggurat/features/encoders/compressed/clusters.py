"""Clusters vectors by weighted k-means, in bounded memory, at up to 10^7 vectors within minutes.

Up to 256 clusters are found at once: seeds by k-means++ (Arthur and Vassilvitskii 2007) on a sample, then Lloyd's
steps on all vectors, or on mini-batches where there are many (Sculley 2010, "Web-scale k-means clustering"). More
clusters are found in two levels: the square root of their number first, then each of these cells is clustered by
itself. A cell gets clusters in proportion to its distortion to the power D / (D + 2), which is best for many clusters
of D dimensions (Zador 1982); then all time is spent on short lists, and no vector meets all centroids.

Vectors are taken in the order given, so that equal input gives equal clusters.

Shape legend: N vectors, K clusters, D coordinates.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Weights = npt.NDArray[np.float64]
Clusters = npt.NDArray[np.int32]

FLAT = 256
"""The most clusters that are found at once."""
_SAMPLE_PER_CLUSTER = 16
_CHUNK = 1 << 21
"""The most distances in memory at once."""
_FULL = 1 << 17
"""Lloyd's steps take all vectors if these are fewer."""
_BATCH = 1 << 14
_STEPS, _BATCH_STEPS = 12, 60
_SETTLED = 0.995
"""Steps end when one leaves more than this share of the distortion."""


def cluster(x_ND: Vectors, weights_N: Weights, count: int, seed: int = 0) -> Clusters:
    """Returns the cluster of each vector, 0 to ``count - 1``; clusters may be empty where vectors are equal.

    Args:
        x_ND: the vectors.
        weights_N: their weights, not negative.
        count: the number of clusters, 1 or more.
        seed: seed of the choice of first centroids and of mini-batches.
    """
    assert count >= 1
    if len(x_ND) <= count:
        return np.arange(len(x_ND), dtype=np.int32)
    weights_N = weights_N + 1e-9 * max(float(weights_N.max()), 1e-300)
    if count <= FLAT:
        return _flat(x_ND, weights_N, count, seed)
    cells = _flat(x_ND, weights_N, min(FLAT, round(count**0.5)), seed)
    return _within(x_ND, weights_N, cells, count, seed)


def centroids(x_ND: Vectors, weights_N: Weights, clusters_N: Clusters, count: int) -> Vectors:
    """Returns the weighted mean of each cluster, (K, D); 0 for an empty one."""
    total = np.bincount(clusters_N, weights=weights_N, minlength=count)
    sums = [np.bincount(clusters_N, weights=weights_N * column, minlength=count) for column in x_ND.T]
    return (np.stack(sums, axis=1) / np.maximum(total, 1e-300)[:, None]).astype(np.float32)


def nearest(x_ND: Vectors, means_KD: Vectors, allowed_K: npt.NDArray[np.bool_] | None = None) -> Clusters:
    """Returns the nearest centroid of each vector.

    Above 1,024 centroids these are put into cells first, and a vector looks among those of its nearest cell only.

    Args:
        x_ND: the vectors.
        means_KD: the centroids.
        allowed_K: which of them count; None: all.
    """
    chosen = np.arange(len(means_KD)) if allowed_K is None else np.flatnonzero(allowed_K)
    if len(chosen) <= 4 * FLAT:
        return chosen[_nearest(x_ND, means_KD[chosen])[0]].astype(np.int32)
    count = min(FLAT, round(len(chosen) ** 0.5))
    cell_of = _flat(means_KD[chosen], np.ones(len(chosen)), count, 0)
    cells = centroids(means_KD[chosen], np.ones(len(chosen)), cell_of, count)
    filled = np.bincount(cell_of, minlength=count) > 0
    cell_N = np.flatnonzero(filled)[_nearest(x_ND, cells[filled])[0]]
    found = np.empty(len(x_ND), np.int32)
    for cell in np.unique(cell_N):
        members, of_cell = np.flatnonzero(cell_N == cell), chosen[cell_of == cell]
        found[members] = of_cell[_nearest(x_ND[members], means_KD[of_cell])[0]]
    return found


def sign_codes(x_ND: Vectors, bits: int, seed: int) -> npt.NDArray[np.int64]:
    """Returns the signs of ``bits`` random projections of each vector as a number, for hashing alike vectors alike.

    The source is Charikar 2002 ("Similarity estimation techniques from rounding algorithms"); vectors are centred
    first, since those of a proxy share a mean.
    """
    random = np.random.default_rng(seed)
    planes_DB = random.standard_normal((x_ND.shape[1], bits)).astype(np.float32)
    mean_D = x_ND.mean(axis=0, dtype=np.float64).astype(np.float32)
    values_B, codes_N = 1 << np.arange(bits, dtype=np.int64), np.empty(len(x_ND), np.int64)
    rows = max(1, _CHUNK // bits)
    for start in range(0, len(x_ND), rows):
        part = slice(start, start + rows)
        codes_N[part] = ((x_ND[part] - mean_D) @ planes_DB > 0).astype(np.int64) @ values_B
    return codes_N


def distortion(x_ND: Vectors, weights_N: Weights, clusters_N: Clusters) -> float:
    """Returns the weighted mean of the squared distance to the mean of the own cluster."""
    count = int(clusters_N.max(initial=0)) + 1
    gap_ND = x_ND - centroids(x_ND, weights_N, clusters_N, count)[clusters_N]
    return float((weights_N * (gap_ND.astype(np.float64) ** 2).sum(axis=1)).sum() / max(weights_N.sum(), 1e-300))


def _within(x_ND: Vectors, weights_N: Weights, cells_N: Clusters, count: int, seed: int) -> Clusters:
    """Clusters the vectors of each cell by themselves, into ``count`` clusters altogether."""
    number = int(cells_N.max()) + 1
    order = np.argsort(cells_N, kind="stable")
    sizes = np.bincount(cells_N, minlength=number)
    gap_ND = x_ND - centroids(x_ND, weights_N, cells_N, number)[cells_N]
    spread = np.bincount(cells_N, weights=weights_N * (gap_ND**2).sum(axis=1), minlength=number)
    shares = shared_out(spread ** (x_ND.shape[1] / (x_ND.shape[1] + 2)), sizes, count)
    found, start, first = np.empty(len(x_ND), np.int32), 0, 0
    for cell in range(number):
        members = order[start : start + sizes[cell]]
        start += sizes[cell]
        if len(members):
            found[members] = first + cluster(x_ND[members], weights_N[members], int(shares[cell]), seed + 1 + cell)
        first += int(shares[cell])
    return found


def shared_out(wishes: Weights, most: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.int64]:
    """Shares out ``total`` in proportion to wishes: at least 1 where ``most`` is not 0, and at most that.

    Args:
        wishes: (n,), not negative.
        most: the most of each, (n,).
        total: the sum, unless all of ``most`` is less.
    """
    shares = np.minimum(most, 1)
    open_ = most > shares
    while (left := total - int(shares.sum())) > 0 and open_.any():
        wanted = np.where(open_, np.maximum(wishes, 1e-12 * max(float(wishes.max()), 1e-300)), 0.0)
        exact = left * wanted / wanted.sum()
        more = np.minimum(np.floor(exact).astype(np.int64), most - shares)
        if not more.any():
            ranked = np.argsort(-exact, kind="stable")[:left]
            more[ranked] = open_[ranked]
        shares, open_ = shares + more, most > shares + more
    return shares


def _flat(x_ND: Vectors, weights_N: Weights, count: int, seed: int) -> Clusters:
    if len(x_ND) <= count:
        return np.arange(len(x_ND), dtype=np.int32)
    random = np.random.default_rng(seed)
    means_KD = _seeds(x_ND, weights_N, count, random)
    if len(x_ND) > _FULL:
        means_KD = _mini_batches(x_ND, weights_N, means_KD, random)
        return _nearest(x_ND, means_KD)[0]
    clusters_N, before = np.zeros(len(x_ND), np.int32), np.inf
    for _ in range(_STEPS):
        clusters_N, distances_N = _nearest(x_ND, means_KD)
        cost_N = weights_N * distances_N
        now = float(cost_N.sum())
        if now >= before * _SETTLED:
            break
        before = now
        means_KD = centroids(x_ND, weights_N, clusters_N, count)
        empty = np.flatnonzero(np.bincount(clusters_N, minlength=count) == 0)
        if len(empty):
            means_KD[empty] = x_ND[np.argsort(-cost_N, kind="stable")[: len(empty)]]
    return clusters_N


def _seeds(x_ND: Vectors, weights_N: Weights, count: int, random: np.random.Generator) -> Vectors:
    """Returns first centroids by k-means++, from a sample."""
    size = _SAMPLE_PER_CLUSTER * count
    if len(x_ND) > size:
        chosen = np.sort(random.choice(len(x_ND), size, replace=False))
        x_ND, weights_N = x_ND[chosen], weights_N[chosen]
    draws = random.random(count)
    means_KD = np.empty((count, x_ND.shape[1]), np.float32)
    distances_N = np.ones(len(x_ND))
    for number in range(count):
        cumulated = np.cumsum(weights_N * distances_N)
        if cumulated[-1] <= 0:
            cumulated = np.cumsum(weights_N)
        pick = min(int(np.searchsorted(cumulated, draws[number] * cumulated[-1], side="right")), len(x_ND) - 1)
        means_KD[number] = x_ND[pick]
        apart = ((x_ND - x_ND[pick]) ** 2).sum(axis=1, dtype=np.float64)
        distances_N = apart if number == 0 else np.minimum(distances_N, apart)
    return means_KD


def _mini_batches(x_ND: Vectors, weights_N: Weights, means_KD: Vectors, random: np.random.Generator) -> Vectors:
    """Moves each centroid to the running mean of what mini-batches assigned to it."""
    count = len(means_KD)
    sums_KD, totals_K = np.zeros(means_KD.shape), np.zeros(count)
    for step in range(_BATCH_STEPS):
        batch = random.integers(0, len(x_ND), _BATCH)
        near = _nearest(x_ND[batch], means_KD)[0]
        keep = 0.0 if step == _BATCH_STEPS // 3 else 1.0  # the first third of the steps was far from settled
        totals_K = keep * totals_K + np.bincount(near, weights=weights_N[batch], minlength=count)
        for column in range(means_KD.shape[1]):
            moved = np.bincount(near, weights=weights_N[batch] * x_ND[batch, column], minlength=count)
            sums_KD[:, column] = keep * sums_KD[:, column] + moved
        met = totals_K > 0
        means_KD[met] = (sums_KD[met] / totals_K[met, None]).astype(np.float32)
    return means_KD


def _nearest(x_ND: Vectors, means_KD: Vectors) -> tuple[Clusters, npt.NDArray[np.float32]]:
    """Returns the nearest centroid of each vector, and its squared distance."""
    found, distances = np.empty(len(x_ND), np.int32), np.empty(len(x_ND), np.float32)
    norms_K = (means_KD**2).sum(axis=1)
    rows = max(1, _CHUNK // len(means_KD))
    for start in range(0, len(x_ND), rows):
        part_ND = x_ND[start : start + rows]
        scores_NK = norms_K - 2 * (part_ND @ means_KD.T)
        best = scores_NK.argmin(axis=1)
        found[start : start + rows] = best
        distances[start : start + rows] = np.maximum(
            scores_NK[np.arange(len(part_ND)), best] + (part_ND**2).sum(axis=1), 0
        )
    return found, distances
