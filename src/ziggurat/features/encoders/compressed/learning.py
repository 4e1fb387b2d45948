"""Fits a learned map: which values get rows of their own, and which share the other rows.

The most frequent values get private rows. The others are clustered by what a proxy learned of them, weighted by their
frequency, so that the squared change of logits that sharing causes, summed over the training rows, is small. The proxy
gives coordinates in which that is a squared distance (:mod:`ziggurat.features.preparation.proxy`). Rare values take no
part: the proxy's vector of a value that occurs once says what the label of that row was. Clusters of such vectors have
rows of equal labels in training, which predict nothing of other rows (docs/decisions/0078).

A refitted map continues another one: clusters begin at the members that they had, and a value moves only if another
cluster is clearly nearer. The centroids are those of the new proxy, so that it may have turned its coordinates. Values
that the new rows lack keep their codes, as nothing says otherwise; only a row none of whose members occurs is given to
others too. Some are forgotten where the map is full (``mapped``), and those whose private row another value takes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.hashing import UInt64Array
from ziggurat.features.encoders.compressed.clusters import (
    Vectors,
    Weights,
    centroids,
    cluster,
    nearest,
    sign_codes,
)
from ziggurat.features.encoders.compressed.code_map import Codes, CompactMap, Groups, PlainMap
from ziggurat.features.encoders.compressed.hashed_keys import ABSENT, HashedKeys, hash_keys
from ziggurat.features.encoders.compressed.mapped import MappedEncoder, Parts
from ziggurat.features.encoders.encoder import Ids, ValueCounts

How = Literal["clusters", "signs", "helper", "residual", "product"]
Form = Literal["plain", "compact"]
_SETTLING = 4
"""Steps of a refitted map."""
_CLEARLY = 0.81
"""A value moves if its squared distance to another cluster is below this share of that to its own."""


@dataclass(frozen=True, slots=True)
class MapSettings:
    """How a map is made.

    Attributes:
        name: the name of the encoder's config.
        how: how codes are found.
        parts: how the rows of the table are divided.
        form: the form of the map.
        code_bits: bits of a code of a compact map.
        check_bits: its bits by which unknown values are found out.
        mapped: the most values with codes, the most frequent ones; None: all that occur often enough.
        min_count: how often a value must occur to have codes.
        seed: seed of clusters and projections.
    """

    name: str
    how: How
    parts: Parts
    form: Form
    code_bits: int
    check_bits: int
    mapped: int | None
    min_count: int
    seed: int


@dataclass(frozen=True, slots=True)
class _Known:
    """The values that occur in training, the most frequent first.

    Attributes:
        places: their positions among all counted values.
        hashes, counts, vectors_ND: what belongs to each.
    """

    places: npt.NDArray[np.int64]
    hashes: UInt64Array
    counts: Weights
    vectors_ND: Vectors

    def slice(self, start: int, stop: int | None) -> _Known:
        part = slice(start, stop)
        return _Known(self.places[part], self.hashes[part], self.counts[part], self.vectors_ND[part])


def learn(
    settings: MapSettings, counts: ValueCounts, vectors_ND: Vectors, previous: MappedEncoder | None = None
) -> tuple[MappedEncoder, Ids]:
    """Returns the fitted encoder, and the ids of the counted values.

    Args:
        settings: how the map is made; rows that no value takes for its own become those of unseen values.
        counts: how often each value occurs.
        vectors_ND: the vector of each.
        previous: an encoder to continue, whose rows are divided alike and whose map is plain, or None; it may have
            had fewer values than private rows.
    """
    hashes = hash_keys(counts.values)
    known = _known(counts, hashes, vectors_ND)
    private = _private_rows(known.hashes[: settings.parts.private], settings.parts.private, previous)
    keys = HashedKeys.of(private)
    rest = known.slice(settings.parts.private, None)
    parts = _fitting_parts(settings.parts, len(private))
    if previous is not None:  # values without codes keep their rows too
        parts = replace(parts, seed=previous.parts.seed)
    settings = replace(settings, parts=parts)
    often = int(np.count_nonzero(rest.counts >= settings.min_count))  # the most frequent ones are first
    tail = rest.slice(0, often if settings.mapped is None else min(often, settings.mapped))
    values = counts.values.take(pa.array(tail.places))
    if settings.form == "compact":
        groups = Groups.of(settings.parts.coded, settings.code_bits, settings.parts.seed)
        within = _codes_in_groups(settings, tail, groups)
        made = CompactMap.of(tail.hashes, within, groups, settings.code_bits, settings.check_bits)
    elif previous is not None:
        settled = _settled(settings, tail, previous.map.find(values, tail.hashes))
        made = _with_others(previous, private, values, tail.hashes, settled, settings.mapped)
    else:
        made = PlainMap.of(values, tail.hashes, codes_of(settings, tail.vectors_ND, tail.counts))
    lineage = _lineage(settings, known) if previous is None else previous.lineage
    encoder = MappedEncoder(settings.name, settings.parts, keys, made, lineage)
    ids = encoder.transform(counts.values)
    if previous is None:
        return encoder, ids
    return replace(encoder, drift=_drift(previous, encoder, counts, ids)), ids


def codes_of(
    settings: MapSettings,
    x_ND: Vectors,
    weights_N: Weights,
    sizes: tuple[int, ...] | None = None,
    seed: int = 0,
) -> Codes:
    """Returns the codes of vectors, (N, W).

    ``clusters`` and ``helper`` have one learned code, the cluster. ``signs`` numbers the signs of random projections.
    ``residual`` clusters what the first code leaves over once more; ``product`` clusters each half of the coordinates.

    Args:
        settings: how codes are found.
        x_ND: the vectors.
        weights_N: their weights.
        sizes: how many codes there are of each kind; None: all of the table's.
        seed: added to the seed of the settings.
    """
    sizes = sizes or settings.parts.coded
    seed += settings.seed
    if not len(x_ND):
        return np.zeros((0, len(sizes)), np.int32)
    match settings.how:
        case "clusters" | "helper":
            return cluster(x_ND, weights_N, sizes[0], seed)[:, None]
        case "signs":
            bits = max(1, (sizes[0] - 1).bit_length())
            distinct, which = np.unique(sign_codes(x_ND, bits, seed), return_inverse=True)
            # Neighbours in order share most of their signs, and a row where there are more codes than rows.
            return (which * sizes[0] // max(sizes[0], len(distinct))).astype(np.int32)[:, None]
        case "residual":
            codes, left_ND = np.empty((len(x_ND), len(sizes)), np.int32), x_ND
            for number, size in enumerate(sizes):
                codes[:, number] = cluster(left_ND, weights_N, size, seed + number)
                left_ND = left_ND - centroids(left_ND, weights_N, codes[:, number], size)[codes[:, number]]
            return codes
        case "product":
            shuffled = np.random.default_rng(settings.seed).permutation(x_ND.shape[1])
            chunks = np.array_split(shuffled, len(sizes))
            found = [
                cluster(np.ascontiguousarray(x_ND[:, chunk]), weights_N, size, seed + number)
                for number, (chunk, size) in enumerate(zip(chunks, sizes, strict=True))
            ]
            return np.stack(found, axis=1)


def _known(counts: ValueCounts, hashes: UInt64Array, vectors_ND: Vectors) -> _Known:
    """Returns the values that occur, those of equal counts by hash; of two with one hash (one in 2^64), the first."""
    seen = np.flatnonzero(counts.counts > 0)
    order = seen[np.lexsort((hashes[seen], -counts.counts[seen]))]
    _, first = np.unique(hashes[order], return_index=True)
    if len(first) < len(order):
        order = order[np.sort(first)]
    return _Known(order, hashes[order], counts.counts[order].astype(np.float64), vectors_ND[order])


def _private_rows(hashes: UInt64Array, most: int, previous: MappedEncoder | None) -> UInt64Array:
    """Returns the hashes of private values by row: those that had a row keep it, and others get what is free.

    Args:
        hashes: the most frequent values.
        most: the most private rows.
        previous: the encoder to continue, with at most as many; its values that are not among ``hashes`` keep their
            rows unless others need them.
    """
    if previous is None:
        return hashes
    before, position = previous.private.in_order(), previous.private.find(hashes)
    newcomers = hashes[position == ABSENT]
    placed = np.zeros(min(most, len(before) + len(newcomers)), np.uint64)
    placed[: len(before)] = before
    left = np.setdiff1d(np.arange(len(before)), position)
    places = np.concatenate([np.arange(len(before), len(placed)), left])[: len(newcomers)]
    placed[places] = newcomers
    return placed


def _fitting_parts(parts: Parts, private: int) -> Parts:
    """Returns the parts with fewer private rows, in whose place there are more of unseen values."""
    return replace(parts, private=private, unseen=parts.unseen + parts.private - private)


def _with_others(
    previous: MappedEncoder,
    private: UInt64Array,
    values: pa.Array,
    hashes: UInt64Array,
    codes: Codes,
    mapped: int | None,
) -> PlainMap:
    """Returns the map of values with new codes, and of those of an earlier map that are neither among them nor private.

    Args:
        previous: the earlier encoder.
        private: the hashes of private values.
        values, hashes, codes: what the new rows taught.
        mapped: the most values of the map; None: any number.
    """
    assert isinstance(previous.map, PlainMap)
    others, other_hashes, other_codes = previous.map.entries()
    left = np.flatnonzero(~np.isin(other_hashes, np.concatenate([private, hashes])))
    left = left if mapped is None else left[: max(0, mapped - len(hashes))]
    if not len(left):
        return PlainMap.of(values, hashes, codes)
    all_values = None if others is None else pa.concat_arrays([values, others.take(pa.array(left))])
    return PlainMap.of(
        all_values, np.concatenate([hashes, other_hashes[left]]), np.concatenate([codes, other_codes[left]])
    )


def _codes_in_groups(settings: MapSettings, tail: _Known, groups: Groups) -> Codes:
    """Returns the codes of each value within its group."""
    group = groups.group(tail.hashes)
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(np.bincount(group, minlength=groups.count))
    codes = np.zeros((len(order), len(settings.parts.coded)), np.int32)
    start = 0
    for number, end in enumerate(ends.tolist()):
        members = order[start:end]
        sizes = tuple(groups.size(part, number) for part in range(len(settings.parts.coded)))
        codes[members] = codes_of(settings, tail.vectors_ND[members], tail.counts[members], sizes, number)
        start = end
    return codes


def _settled(settings: MapSettings, tail: _Known, before: Codes) -> Codes:
    """Returns the clusters of values, most of which have one already."""
    count = settings.parts.coded[0]
    current = before[:, 0].astype(np.int64)
    known = current != ABSENT
    if not known.any():
        return codes_of(settings, tail.vectors_ND, tail.counts)
    for _ in range(_SETTLING):
        has = current != ABSENT
        weights = np.where(has, tail.counts, 0.0)
        members = np.where(has, current, 0).astype(np.int32)
        means_KD = centroids(tail.vectors_ND, weights, members, count)
        filled = np.bincount(current[has], minlength=count) > 0
        near = nearest(tail.vectors_ND, means_KD, filled)
        gap_near = ((tail.vectors_ND - means_KD[near]) ** 2).sum(axis=1)
        gap_own = np.where(has, ((tail.vectors_ND - means_KD[members]) ** 2).sum(axis=1), np.inf)
        moved = gap_near < _CLEARLY * gap_own
        current = np.where(moved | ~has, near, current)
        empty = np.flatnonzero(~filled)
        if len(empty):
            cost = tail.counts * np.where(moved | ~has, gap_near, gap_own)
            cost[np.bincount(current, minlength=count)[current] == 1] = 0.0  # alone in its cluster: it would only move
            worst = np.argsort(-cost, kind="stable")[: len(empty)]
            worst = worst[cost[worst] > 0]
            current[worst] = empty[: len(worst)]
    return current.astype(np.int32)[:, None]


def _drift(previous: MappedEncoder, encoder: MappedEncoder, counts: ValueCounts, ids: Ids) -> dict[str, float]:
    """Returns the shares of known values that occur, and of their look-ups, that kept their rows; of new values among
    those that occur; and of all values of the earlier encoder that this one no longer knows."""
    hashes = hash_keys(counts.values)
    had = previous.private.find(hashes) != ABSENT
    had |= previous.map.find(counts.values, hashes)[:, 0] != ABSENT
    before = previous.transform(counts.values)
    same = (before == ids) if ids.ndim == 1 else (before == ids).all(axis=1)
    occurs = counts.counts > 0
    known = had & occurs
    lookups = counts.counts.astype(np.float64)
    lost = ~np.isin(_known_hashes(previous), _known_hashes(encoder))
    return {
        "kept_values": float(same[known].mean()) if known.any() else 1.0,
        "kept_lookups": float((lookups * (same & known)).sum() / max(1.0, (lookups * known).sum())),
        "new_values": float((occurs & ~had).sum() / max(1, int(occurs.sum()))),
        "lost_values": float(lost.mean()) if len(lost) else 0.0,
    }


def _known_hashes(encoder: MappedEncoder) -> UInt64Array:
    assert isinstance(encoder.map, PlainMap)
    return np.concatenate([encoder.private.in_order(), encoder.map.entries()[1]])


def _lineage(settings: MapSettings, known: _Known) -> str:
    digest = hashlib.sha256(repr(settings).encode())
    digest.update(np.ascontiguousarray(known.vectors_ND).tobytes())
    digest.update(known.hashes.tobytes())
    return digest.hexdigest()[:32]
