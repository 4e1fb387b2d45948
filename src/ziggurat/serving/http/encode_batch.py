"""Encodes the rows of the requests of a batch: together where they can be, and each alone where one is at fault.

Rows of JSON are encoded value by value; those that cannot be, and all others, as a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from ziggurat.core.errors import DataError, ZigguratError
from ziggurat.data.readers.blocks import RawBlock
from ziggurat.data.readers.table_reader import read_table
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.refusals import HttpRefused
from ziggurat.serving.http.served_model import ServedModel, of_data_error
from ziggurat.serving.model.given_rows import GivenRows, JoinedRows, Kinds
from ziggurat.serving.model.requests import EncodedRequests, encode_by_value, encode_rows

Request = Sequence[GivenRows]


@dataclass(slots=True)
class EncodedBatch:
    """The encoded rows of a batch.

    Attributes:
        encoded: the rows of groups of requests.
        order: the requests whose rows those are, in their order.
        refused: request -> why it cannot be predicted.
    """

    encoded: list[EncodedRequests]
    order: list[int]
    refused: dict[int, Exception]


def encode_batch(
    model: ServedModel, requests: Mapping[int, Request], sizes: Mapping[int, int], limits: ServingLimits
) -> EncodedBatch:
    """Encodes the rows of requests.

    Args:
        model: the model.
        requests: number of a request -> what its rows consist of.
        sizes: number of a request -> how many rows it predicts.
        limits: the bounds.
    """
    found = EncodedBatch([], [], {})
    rows: dict[int, list[JoinedRows]] = {}
    by_value: dict[tuple[tuple[int, str], ...], list[int]] = {}
    for number, request in requests.items():
        if all(part.by_value(limits.ids_per_row) for part in request):
            by_value.setdefault(tuple((id(part.side), part.place) for part in request), []).append(number)
    left = set(requests)
    for group in by_value.values():
        left.difference_update(_encode_by_value(model, group, requests, sizes, limits, found))
    for number, request in requests.items():
        if number not in left:
            continue
        try:
            rows[number] = [_joined(each) for each in request]
        except HttpRefused as error:
            found.refused[number] = error
    for group in _groups(rows):
        _encode(model, group, rows, sizes, limits, found)
    return found


def _encode_by_value(
    model: ServedModel,
    group: list[int],
    requests: Mapping[int, Request],
    sizes: Mapping[int, int],
    limits: ServingLimits,
    found: EncodedBatch,
) -> list[int]:
    """Encodes the rows of requests of one kind value by value; returns the requests for which that could be done."""
    parts = list(zip(*(requests[number] for number in group), strict=True))
    rows = [sizes[number] for number in group]
    rest = _rest(model, parts, rows, limits)
    encoded = None if rest is False else encode_by_value(model.scorer.manifest, parts, rows, rest)
    if encoded is not None:
        found.encoded.append(encoded)
        found.order += group
        return group
    if len(group) == 1:
        return []
    middle = len(group) // 2
    halves = (group[:middle], group[middle:])
    return [number for half in halves for number in _encode_by_value(model, half, requests, sizes, limits, found)]


def _rest(
    model: ServedModel, parts: Sequence[Request], sizes: Sequence[int], limits: ServingLimits
) -> EncodedRequests | Literal[False] | None:
    """Encodes the features that need a table; None if there are none, False if a value is at fault."""
    sides = [
        [GivenRows(side, each.rows, each.place, plain=True) for each in given]
        for given in parts
        if (side := given[0].side.rest) is not None
    ]
    if not sides:
        return None
    try:
        joined = _all_joined([[JoinedRows.of(each) for each in given] for given in sides])
        if joined is None:
            return False
        read = [(rows, _read(rows, limits)) for rows in joined]
        encoded = encode_rows(model.scorer.manifest, read, sizes)
    except (HttpRefused, ZigguratError):
        return False  # the requests are read as tables, which names the value
    return encoded if isinstance(encoded, EncodedRequests) else False


def _all_joined(sides: Sequence[Sequence[JoinedRows]]) -> list[JoinedRows] | None:
    """Returns the rows of each side of several requests; None if those of a side cannot be joined."""
    found = [joined for rows in sides if (joined := JoinedRows.joined(rows)) is not None]
    return found if len(found) == len(sides) else None


def _joined(given: GivenRows) -> JoinedRows:
    try:
        return JoinedRows.of(given)
    except DataError as error:
        raise of_data_error(error, given.place) from None


def _groups(requests: Mapping[int, list[JoinedRows]]) -> list[list[int]]:
    """Returns the requests whose rows can be joined, in their order."""
    if len(requests) == 1:
        return [list(requests)]
    groups: list[tuple[list[int], list[Kinds]]] = []
    for number, sides in requests.items():
        for place, (members, kinds) in enumerate(groups):
            if len(kinds) != len(sides):
                continue
            common = [each.common(side.kinds) for each, side in zip(kinds, sides, strict=True)]
            if all(each is not None for each in common):
                groups[place] = ([*members, number], [each for each in common if each is not None])
                break
        else:
            groups.append(([number], [side.kinds for side in sides]))
    return [members for members, _ in groups]


def _encode(
    model: ServedModel,
    group: list[int],
    requests: Mapping[int, list[JoinedRows]],
    sizes: Mapping[int, int],
    limits: ServingLimits,
    found: EncodedBatch,
) -> None:
    """Encodes the rows of requests that can be joined; if some are at fault, those alone, and the others again."""
    joined = _all_joined(list(zip(*(requests[number] for number in group), strict=True)))
    assert joined is not None  # the requests of a group can be joined
    try:
        encoded = encode_rows(
            model.scorer.manifest,
            [(rows, _read(rows, limits)) for rows in joined],
            [sizes[number] for number in group],
        )
    except (HttpRefused, ZigguratError) as error:
        if len(group) == 1:
            found.refused[group[0]] = error
            return
        middle = len(group) // 2
        for half in (group[:middle], group[middle:]):
            _encode(model, half, requests, sizes, limits, found)
        return
    if isinstance(encoded, EncodedRequests):
        found.encoded.append(encoded)
        found.order += group
        return
    if len(group) == 1:
        found.refused[group[0]] = model.bad_rows(encoded)
        return
    at_fault = {group[rows.owner(row.line - 1)] for rows, row in encoded}
    for number in at_fault:
        _encode(model, [number], requests, sizes, limits, found)
    others = [number for number in group if number not in at_fault]
    if others:
        _encode(model, others, requests, sizes, limits, found)


def _read(rows: JoinedRows, limits: ServingLimits) -> RawBlock:
    """Reads rows by the rules of files.

    Raises:
        HttpRefused: values are of another type, or a row has too many ids.
    """
    try:
        block = read_table(rows.table(), rows.kinds.side.schema)
    except DataError as error:
        raise of_data_error(error, rows.kinds.place) from None
    _check_ids(block, limits, rows.kinds.place)
    return block


def _check_ids(block: RawBlock, limits: ServingLimits, place: str) -> None:
    total = np.zeros(block.table.num_rows, np.int64)
    for column in block.table.columns:
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            start = 0
            for chunk in column.chunks:
                lengths = chunk.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
                total[start : start + len(chunk)] += lengths
                start += len(chunk)
    if len(total) and int(total.max()) > limits.ids_per_row:
        row = int(total.argmax())
        where = place if place == "context" else f"{place}[{int(block.lines[row]) - 1}]"
        raise HttpRefused(
            422,
            "too_many_ids",
            f"{where}: its lists hold {int(total[row]):,} values; {limits.ids_per_row:,} are allowed",
            "send the last ones, or start the server with a larger --max-ids-per-row",
        )
