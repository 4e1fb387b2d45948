"""Counts in how many training rows a bag or a sequence holds the row's own id, which often tells the label.

A history should end before the row that it belongs to. If it holds the row itself, or what the user did after it, a
model learns to look the answer up, and fails where it is used: there the answer is not in the history yet. Rows are
counted part by part, by value, so that neither collisions of hashes nor unknown values count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.hashing import hash_array, to_buckets
from ziggurat.core.schema import label_column
from ziggurat.core.statistics import FeatureStatistics, OwnIds
from ziggurat.data.encoded.split import TRAIN, Assignment
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.features.assemble import truncate
from ziggurat.features.columns import Codes
from ziggurat.features.config import CategoricalFeature, IdFeature
from ziggurat.features.preparation.parts import StagedParts
from ziggurat.features.tables import TableEncoding

BUCKETS = 1 << 20
"""Buckets in which values are counted to compute how many matches chance would make."""

LEAST_EXCESS = 0.01
"""A share of rows that exceeds that of chance by less is not reported: people do come back to some items."""

_Mask = npt.NDArray[np.bool_]


class _Pair:
    """The counts of one list feature and one single-valued feature of the same table.

    Args:
        labels: the names of the labels.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = {label: np.zeros((2, 2), np.int64) for label in labels}
        self.rows = self.own = 0

    def add(self, covered_B: _Mask, own_B: _Mask, labels: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Counts a part: the training rows with a list, and those of them whose list holds their own id."""
        self.rows += int(np.count_nonzero(covered_B))
        self.own += int(np.count_nonzero(own_B))
        for label, values_B in labels.items():
            for value in (0, 1):
                of_value_B = values_B == value
                self.labels[label][value] += [np.count_nonzero(each & of_value_B) for each in (covered_B, own_B)]


class _ValueCounts:
    """How often each value occurs, in buckets of a hash."""

    def __init__(self) -> None:
        self.buckets = np.zeros(BUCKETS, np.float64)
        self.total = 0

    def add(self, values: pa.Array, codes: npt.NDArray[np.integer]) -> None:
        counts = np.bincount(codes, minlength=len(values) + 1)[: len(values)]
        self.total += int(counts.sum())
        self.buckets += np.bincount(to_buckets(hash_array(values), BUCKETS), weights=counts, minlength=BUCKETS)


def count_own_ids(
    encoding: TableEncoding, labels: Sequence[str], parts: StagedParts, assignments: Sequence[Assignment]
) -> dict[str, dict[str, OwnIds]]:
    """Counts, for each bag and sequence of a table, the training rows that hold their own id.

    Args:
        encoding: the encoding of the table.
        labels: the names of the labels.
        parts: the staged parts.
        assignments: the split of each row, for each part.

    Returns:
        List feature -> single-valued feature of the same table -> its counts; empty if the table has not both.
    """
    singles = [feature for feature in encoding.features if isinstance(feature, CategoricalFeature)]
    lists = [feature for feature in encoding.features if not isinstance(feature, CategoricalFeature)]
    if not singles or not lists:
        return {}
    counts = {feature.name: _ValueCounts() for feature in encoding.features}
    pairs = {(each.name, single.name): _Pair(labels) for each in lists for single in singles}
    for part, assignment in enumerate(assignments):
        training_B = assignment == TRAIN
        targets = {label: parts.target(part, label_column(label)) for label in labels}
        own = [(single, *_read(parts, part, single)) for single in singles]
        for single, values, codes in own:
            counts[single.name].add(values, codes.codes[training_B])
        for each in lists:
            values, codes = _read(parts, part, each)
            covered_B = training_B & (codes.lengths > 0)
            counts[each.name].add(values, codes.codes[np.repeat(covered_B, codes.lengths)])
            for single, own_values, own_codes in own:
                own_B = covered_B & _holds(codes, _translated(own_values, own_codes, values))
                pairs[each.name, single.name].add(covered_B, own_B, targets)
    rows = sum(int(np.count_nonzero(assignment == TRAIN)) for assignment in assignments)
    return {
        each.name: {
            single.name: _result(pairs[each.name, single.name], counts[each.name], counts[single.name], rows)
            for single in singles
        }
        for each in lists
    }


def leak_warnings(features: Mapping[str, FeatureStatistics]) -> list[str]:
    """Returns a sentence for each list whose rows hold their own id more often than chance would have it."""
    return [
        _sentence(feature.name, single, own)
        for feature in features.values()
        for single, own in feature.own_ids.items()
        if any(_is_excess(each_rows, each_own, own.chance) for _, each_rows, each_own in _groups(own))
    ]


def _read(parts: StagedParts, part: int, feature: IdFeature) -> tuple[pa.Array, Codes]:
    """Returns the distinct values of a feature's column in a part, and the codes that it looks up."""
    return parts.values(part, feature.source_column), truncate(feature, parts.codes(part, feature.source_column))


def _translated(values: pa.Array, codes: Codes, others: pa.Array) -> npt.NDArray[np.int32]:
    """Returns for each row the code of its value among ``others``; -1 if it is not there, or missing."""
    positions = pc.index_in(values, value_set=others).fill_null(-1).to_numpy(zero_copy_only=False)
    return np.append(positions, -1).astype(np.int32)[codes.codes]


def _holds(codes: Codes, wanted_B: npt.NDArray[np.int32]) -> _Mask:
    """Returns whether each row's list holds the code that is wanted for it."""
    assert codes.offsets is not None
    hits = np.flatnonzero(codes.codes == np.repeat(wanted_B, codes.lengths))
    found_B = np.zeros(codes.rows, np.bool_)
    found_B[np.searchsorted(codes.offsets, hits, side="right") - 1] = True
    return found_B


def _result(pair: _Pair, lists: _ValueCounts, singles: _ValueCounts, rows: int) -> OwnIds:
    """Returns a pair's counts with the share of rows that chance would give.

    Chance: each position of a list holds the row's own id with the probability that any row has that id. Summed over
    positions that is an upper bound for the share of rows. Values that share a bucket are counted as equal; the
    expected number of these matches is taken off.
    """
    matches = float(lists.buckets @ singles.buckets)
    collisions = lists.total * singles.total / BUCKETS
    expected = max(matches - collisions, 0.0) / (1 - 1 / BUCKETS) / max(rows, 1)
    chance = round(min(expected / pair.rows, 1.0), 6) if pair.rows else 0.0
    by_label = {label: counts.tolist() for label, counts in pair.labels.items()}
    return OwnIds(rows=pair.rows, own=pair.own, chance=chance, by_label=by_label)


def _groups(own: OwnIds) -> Iterator[tuple[str, int, int]]:
    """Yields groups of the rows with a list: their description, their number, and how many hold their own id."""
    yield "", own.rows, own.own
    for label, counts in own.by_label.items():
        for value, (rows, holding) in enumerate(counts):
            yield f"{label} = {value}", rows, holding


def _is_excess(rows: int, own: int, chance: float) -> bool:
    """Returns whether a share exceeds that of chance by a percent and by four standard errors."""
    if not rows:
        return False
    return own / rows - chance > max(LEAST_EXCESS, 4 * (chance * (1 - chance) / rows) ** 0.5)


def _sentence(name: str, single: str, own: OwnIds) -> str:
    (_, rows, holding), *groups = _groups(own)
    shares = ", ".join(f"{each_own / each_rows:.1%} where {what}" for what, each_rows, each_own in groups if each_rows)
    return (
        f"a likely leak: {name!r} holds the row's own {single!r} in {holding / rows:.1%} of the {rows:,} training rows "
        f"that have one ({shares}; by chance {own.chance:.1%}). A history must end before its row; if it does, people "
        "come back to the same values, and nothing is wrong"
    )
