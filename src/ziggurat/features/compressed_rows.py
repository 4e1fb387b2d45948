"""Which rows of two tables with fewer rows than values mean the same: private rows by value, shared ones by lineage.

Shape legend: R rows of the table here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.hashing import UInt64Array
from ziggurat.features.encoders.compressed.code_map import PlainMap
from ziggurat.features.encoders.compressed.frequency import FrequencyEncoder
from ziggurat.features.encoders.compressed.hashed_keys import ABSENT, HashedKeys
from ziggurat.features.encoders.compressed.mapped import MappedEncoder
from ziggurat.features.encoders.compressed.quotient_remainder import QuotientRemainderEncoder
from ziggurat.features.encoders.encoder import MISSING_ROW

Rows = npt.NDArray[np.int64]
CompressedEncoder = MappedEncoder | FrequencyEncoder | QuotientRemainderEncoder


def compressed_difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """Returns why the rows of two such encoders of one name cannot be matched, given their JSON; None if they can."""
    if "lineage" in ours:
        plain = all(each["map"]["form"] == "plain" and _votes(each) for each in (ours, theirs))
        if ours["lineage"] != theirs["lineage"] and not plain:
            return "its clusters were not learned from those there: fit it with `keep`, or with map: plain"
        return None
    if ours["name"] == "quotient_remainder":
        keys = [key for key in ("rows", "remainders", "low", "seed") if ours[key] != theirs[key]]
        shown = ", ".join(f"{key} {theirs[key]} there, {ours[key]} here" for key in keys)
        return f"its division differs: {shown}" if keys else None
    return None


def match_compressed(there: CompressedEncoder, here: CompressedEncoder) -> tuple[Rows, str | None]:
    """Returns the row there of each row here, (R,), -1 for none; and what could not be matched.

    Args:
        there: the encoder that rows come from.
        here: the encoder that takes them over, between which :func:`compressed_difference` finds no difference.
    """
    rows_R = np.full(here.rows, ABSENT, np.int64)
    rows_R[MISSING_ROW] = MISSING_ROW
    match there, here:
        case MappedEncoder(), MappedEncoder():
            rows_R[1 : 1 + here.parts.private] = there_rows(there, here.private.in_order())
            return rows_R, _match_parts(there, here, rows_R)
        case FrequencyEncoder(), FrequencyEncoder():
            own = len(here.keys) - here.elsewhere
            found = there.keys.find(here.keys.in_order()[:own])
            rows_R[1 : 1 + own] = np.where(
                (found != ABSENT) & (found < len(there.keys) - there.elsewhere), 1 + found, -1
            )
            if (here.shared, here.seed, here.codes) == (there.shared, there.seed, there.codes):
                first = 1 + len(there.keys) - there.elsewhere
                rows_R[1 + own :] = first + np.arange(here.shared)
                return rows_R, None
            return rows_R, f"rows that are shared by hash start from scratch: {there.shared} there, {here.shared} here"
        case _:
            return np.arange(here.rows), None


def there_rows(there: MappedEncoder, hashes: UInt64Array) -> Rows:
    """Returns the private row there of the values with these hashes, or that of their cluster if a plain map knows
    them; -1 for others."""
    private = there.private.find(hashes)
    rows = np.where(private != ABSENT, 1 + private, ABSENT)
    if isinstance(there.map, PlainMap) and there.parts.codes == 1:
        _, known, codes = there.map.entries()
        position = HashedKeys.of(known).find(hashes)
        shared = (rows == ABSENT) & (position != ABSENT)
        rows[shared] = there.parts.first_coded + codes[position[shared], 0]
    return rows


def _match_parts(there: MappedEncoder, here: MappedEncoder, rows_R: Rows) -> str | None:
    """Fills in the unseen and the shared rows; returns what could not be matched."""
    note = None
    unseen = 1 + here.parts.private + np.arange(here.parts.unseen)
    if here.parts.unseen % there.parts.unseen == 0:
        rows_R[unseen] = 1 + there.parts.private + np.arange(here.parts.unseen) % there.parts.unseen
    else:
        note = f"rows of unseen values start from scratch: {there.parts.unseen} there, {here.parts.unseen} here"
    first = here.parts.first_coded
    if there.lineage == here.lineage and (there.parts.coded, there.parts.helper) == (
        here.parts.coded,
        here.parts.helper,
    ):
        rows_R[first:] = there.parts.first_coded + np.arange(here.rows - first)
        return note
    assert isinstance(here.map, PlainMap)
    votes = _votes_of_members(there, here, here.map)
    rows_R[first : first + len(votes)] = votes
    if len(here.map.codes) and not (votes != ABSENT).any():
        alone = "shared rows start from scratch: none of the values that share them has a row there"
        note = alone if note is None else f"{note}; {alone}"
    return note


def _votes_of_members(there: MappedEncoder, here: MappedEncoder, members: PlainMap) -> Rows:
    """Returns the row there that most members of each cluster here have; of equally many, the first."""
    _, hashes, codes = members.entries()
    clusters = codes[:, 0].astype(np.int64)
    rows = there_rows(there, hashes)
    voting = rows != ABSENT
    votes = np.full(here.parts.coded[0], ABSENT, np.int64)
    pairs, counts = np.unique(clusters[voting] * there.rows + rows[voting], return_counts=True)
    order = np.lexsort((pairs, -counts))
    cluster_of, first = np.unique(pairs[order] // there.rows, return_index=True)
    votes[cluster_of] = (pairs[order] % there.rows)[first]
    return votes


def _votes(settings: Mapping[str, Any]) -> bool:
    """Whether the members of clusters can be compared one by one."""
    return len(settings["coded"]) == 1 and not settings["helper"]
