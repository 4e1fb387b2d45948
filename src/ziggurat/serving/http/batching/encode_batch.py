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
from ziggurat.core.schema import RawSchema
from ziggurat.data.readers.blocks import BadRow, RawBlock
from ziggurat.data.readers.table_reader import read_table
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.refusals import HttpRefused
from ziggurat.serving.http.served_model import ServedModel, of_data_error, value_words
from ziggurat.serving.model.given_rows import GivenRows, JoinedRows, Kinds
from ziggurat.serving.model.requests import EncodedRequests, encode_by_value, encode_rows

Request = Sequence[GivenRows]
_UNCONVERTED = (pa.ArrowException, ArithmeticError, ValueError)
"""What Arrow, and Python's decimal numbers, raise for values that they cannot convert."""


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
    batch = _Batch(model, requests, sizes, limits)
    left = set(requests)
    for group in _groups_by_value(requests, limits):
        left.difference_update(batch.by_value(group))
    batch.as_tables([number for number in requests if number in left])
    return batch.found


class _Batch:
    """A batch on its way; the arguments are those of :func:`encode_batch`.

    Attributes:
        found: what is encoded or refused so far.
    """

    def __init__(
        self, model: ServedModel, requests: Mapping[int, Request], sizes: Mapping[int, int], limits: ServingLimits
    ) -> None:
        self._model, self._requests, self._sizes, self._limits = model, requests, sizes, limits
        self._rows: dict[int, list[JoinedRows]] = {}
        self.found = EncodedBatch([], [], {})

    def by_value(self, group: list[int]) -> list[int]:
        """Encodes the rows of requests of one kind value by value; returns those for which that could be done."""
        parts = list(zip(*(self._requests[number] for number in group), strict=True))
        sizes = [self._sizes[number] for number in group]
        rest = self._rest(parts, sizes)
        encoded = None if rest is False else encode_by_value(self._model.scorer.manifest, parts, sizes, rest)
        if encoded is not None:
            self._add(encoded, group)
            return group
        return [] if len(group) == 1 else [number for half in _halves(group) for number in self.by_value(half)]

    def _rest(self, parts: Sequence[Request], sizes: Sequence[int]) -> EncodedRequests | Literal[False] | None:
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
            encoded = False if joined is None else self._encoded(joined, sizes)
        except (HttpRefused, ZigguratError):
            return False  # the requests are read as tables, which names the value
        return encoded if isinstance(encoded, EncodedRequests) else False

    def as_tables(self, requests: Sequence[int]) -> None:
        """Encodes or refuses the rows of requests as tables."""
        for number in requests:
            try:
                self._rows[number] = [_joined(each) for each in self._requests[number]]
            except HttpRefused as error:
                self.found.refused[number] = error
        for group in _groups(self._rows):
            self._as_table(group)

    def _as_table(self, group: list[int]) -> None:
        """Encodes the rows of requests that can be joined; if some are at fault, those alone, and the others again."""
        joined = _all_joined(list(zip(*(self._rows[number] for number in group), strict=True)))
        assert joined is not None  # the requests of a group can be joined
        try:
            encoded = self._encoded(joined, [self._sizes[number] for number in group])
        except (HttpRefused, ZigguratError) as error:
            if len(group) == 1:
                self.found.refused[group[0]] = error
                return
            for half in _halves(group):
                self._as_table(half)
            return
        if isinstance(encoded, EncodedRequests):
            self._add(encoded, group)
            return
        if len(group) == 1:
            self.found.refused[group[0]] = self._model.bad_rows(encoded)
            return
        at_fault = {group[rows.owner(row.line - 1)] for rows, row in encoded}
        for number in at_fault:
            self._as_table([number])
        others = [number for number in group if number not in at_fault]
        if others:
            self._as_table(others)

    def _encoded(
        self, joined: Sequence[JoinedRows], sizes: Sequence[int]
    ) -> EncodedRequests | list[tuple[JoinedRows, BadRow]]:
        """Reads and encodes rows as a table, or returns those that cannot be encoded.

        Raises:
            HttpRefused, ZigguratError: they cannot be read.
        """
        parts = [(rows, _read(rows, self._limits)) for rows in joined]
        return encode_rows(self._model.scorer.manifest, parts, sizes)

    def _add(self, encoded: EncodedRequests, group: Sequence[int]) -> None:
        self.found.encoded.append(encoded)
        self.found.order += group


def _halves(group: list[int]) -> tuple[list[int], list[int]]:
    middle = len(group) // 2
    return group[:middle], group[middle:]


def _groups_by_value(requests: Mapping[int, Request], limits: ServingLimits) -> list[list[int]]:
    """Returns the requests whose rows may be encoded value by value together, in their order."""
    groups: dict[tuple[tuple[int, str], ...], list[int]] = {}
    for number, request in requests.items():
        if all(part.by_value(limits.ids_per_row) for part in request):
            groups.setdefault(tuple((id(part.side), part.place) for part in request), []).append(number)
    return list(groups.values())


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


def _read(rows: JoinedRows, limits: ServingLimits) -> RawBlock:
    """Reads rows by the rules of files.

    Raises:
        HttpRefused: values are of another type or cannot be converted, or a row has too many ids.
    """
    schema, place = rows.kinds.side.schema, rows.kinds.place
    try:
        block = read_table(rows.table(), schema)
    except DataError as error:
        raise of_data_error(error, place) from None
    except _UNCONVERTED as error:
        if len(rows.parts) == 1:
            raise _unconverted(rows.table(), schema, place, error) from None
        raise DataError(f"{place}: some values cannot be converted", "send each request alone") from None
    _check_ids(block, limits, rows.kinds.place)
    return block


def _unconverted(table: pa.Table, schema: RawSchema, place: str, error: Exception) -> HttpRefused:
    """Returns the refusal of a table with values that Arrow cannot convert, which names the first such column."""
    for column in schema.columns:
        try:
            read_table(table, RawSchema((column,)))
        except _UNCONVERTED as found:
            kind = str(table.schema.field(column.source).type) if column.source in table.column_names else "a path"
            at = f"{place}, column {column.source!r}"
            problem = f"values of the Arrow type {kind[:100]} cannot be converted: {_message(found)}"
            hint = f"send {value_words(column)} as the training files have it"
            row = {"at": at, "column": column.source, "problem": problem, "hint": hint}
            return HttpRefused(422, "invalid_rows", f"{at}: {problem}", hint, rows=(row,))
    problem = f"{place}: values cannot be converted: {_message(error)}"
    return HttpRefused(422, "invalid_rows", problem, "send values as the training files have them")


def _message(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


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
