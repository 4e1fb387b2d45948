"""Splits libsvm rows into tokens: vectorised if all rows of a block are well-formed, row by row if not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.errors import shorten
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.cells.text import CellRules, RejectedCell, parse_float, parse_integer
from ziggurat.data.readers.libsvm.numbers import has_repeated_keys
from ziggurat.data.readers.rejection_reasons import rejection_reason
from ziggurat.data.readers.text.records import Records

MALFORMED = "malformed libsvm row"
WRONG_FIELDS = "wrong fields"
WRONG_VALUE = "value other than 1"
TWICE = "repeated index"

_QUERY = "qid:"
_NO_MISSING = CellRules()

_Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LibsvmLayout:
    """The layout of the rows of a file.

    Attributes:
        has_fields: entries are ``field:index:value`` instead of ``index:value``.
        has_query: a ``qid:`` token follows the label.
        columns: names of the fields, or None.
        single: numbers of the fields that may occur at most once in a row.
        drops_values: ids are read without their values, which must then be 1.
        numeric: what holds numbers, at most once in a row: field numbers if ``columns`` is given, indices if not.
    """

    has_fields: bool
    has_query: bool
    columns: tuple[str, ...] | None
    single: frozenset[int]
    drops_values: bool = False
    numeric: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of all rows, with their entries concatenated.

    Attributes:
        labels: string, one per row.
        queries: string, one per row; None without ``qid:``.
        lengths: number of entries in each row.
        fields: int64, the field number of each entry; None if entries have none.
        ids: string, the id of each entry, which is an integer.
        values: float64, the value of each entry.
        numeric: whether each entry belongs to a column of numbers.
    """

    labels: pa.Array
    queries: pa.Array | None
    lengths: npt.NDArray[np.int64]
    fields: npt.NDArray[np.int64] | None
    ids: pa.Array
    values: pa.Array
    numeric: npt.NDArray[np.bool_]

    @property
    def entry_rows(self) -> npt.NDArray[np.int64]:
        """The row index of each entry."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


def tokenise(records: Records, layout: LibsvmLayout) -> Tokens | None:
    """Splits all ``records`` into tokens; returns None if one of them must be examined individually."""
    if not len(records) or b"#" in records.data or not records.data.isascii():
        return None
    text = _strings(records)
    tokens = pc.ascii_split_whitespace(pc.ascii_trim_whitespace(text))
    lengths = pc.list_value_length(tokens).to_numpy().astype(np.int64)
    flat = tokens.flatten()
    starts = np.cumsum(lengths) - lengths
    leading_tokens = 2 if layout.has_query else 1
    if (lengths < leading_tokens).any():
        return None
    entry = np.ones(len(flat), np.bool_)
    entry[starts] = False
    labels = flat.take(pa.array(starts))
    queries = None
    if layout.has_query:
        entry[starts + 1] = False
        queries = flat.take(pa.array(starts + 1))
        if pc.all(pc.starts_with(queries, _QUERY)).as_py() is False:
            return None
        queries = pc.utf8_slice_codeunits(queries, len(_QUERY))
    parts = _split_entries(flat.filter(pa.array(entry)), 3 if layout.has_fields else 2)
    if parts is None or pc.any(pc.or_(pc.match_substring(labels, ":"), pc.equal(labels, ""))).as_py():
        return None
    *fields, ids, values = parts
    try:
        field_numbers = fields[0].cast(pa.int64()).to_numpy() if fields else None
        indices = ids.cast(pa.int64()).to_numpy()
        numeric = _is_numeric(layout, indices, field_numbers, lengths - leading_tokens)
        tokens_found = Tokens(
            labels, queries, lengths - leading_tokens, field_numbers, ids, values.cast(pa.float64()), numeric
        )
    except pa.ArrowInvalid:
        return None
    return tokens_found if _are_valid(tokens_found, indices, layout) else None


def tokenise_slowly(records: Records, layout: LibsvmLayout) -> tuple[Tokens, list[int], dict[int, str]]:
    """Returns the tokens of the good ``records``, their indices, and index -> reason for each bad one."""
    good: list[int] = []
    bad: dict[int, str] = {}
    labels: list[str] = []
    queries: list[str] = []
    entries: list[list[tuple[int, str, float]]] = []
    for row in range(len(records)):
        try:
            label, query, row_entries = _parse_row(records[row], layout)
        except RejectedCell as error:
            bad[row] = str(error)
            continue
        good.append(row)
        labels.append(label)
        queries.append(query)
        entries.append(row_entries)
    flat = [entry for row_entries in entries for entry in row_entries]
    lengths = np.array([len(row_entries) for row_entries in entries], np.int64)
    fields = np.array([field for field, _, _ in flat], np.int64) if layout.has_fields else None
    tokens = Tokens(
        labels=pa.array(labels, pa.string()),
        queries=pa.array(queries, pa.string()) if layout.has_query else None,
        lengths=lengths,
        fields=fields,
        ids=pa.array([index for _, index, _ in flat], pa.string()),
        values=pa.array([value for _, _, value in flat], pa.float64()),
        numeric=_is_numeric(layout, np.array([int(index) for _, index, _ in flat], np.int64), fields, lengths),
    )
    return tokens, good, bad


def split_row(record: bytes) -> list[str]:
    """Splits a row into tokens, without its comment."""
    return record.partition(b"#")[0].decode("utf-8", errors="backslashreplace").split()


def _strings(records: Records) -> pa.Array:
    """Returns each record, including empty lines after it, sharing the memory of ``records.data``."""
    offsets = np.append(records.starts, len(records.data)).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(records.data)]
    return pa.Array.from_buffers(pa.string(), len(records), buffers)


def _split_entries(entries: pa.Array, count: int) -> list[pa.Array] | None:
    """Splits ``a:b`` entries into ``count`` parts; returns None if an entry has another number of parts."""
    colons = pc.count_substring(entries, ":")
    if len(entries) and pc.all(pc.equal(colons, count - 1)).as_py() is False:
        return None
    flat = pc.split_pattern(entries, ":").flatten()
    return [flat.take(pa.array(np.arange(place, len(flat), count))) for place in range(count)]


def _is_numeric(
    layout: LibsvmLayout, indices: npt.NDArray[np.int64], fields: npt.NDArray[np.int64] | None, lengths: _Lengths
) -> npt.NDArray[np.bool_]:
    """Whether each entry belongs to a column of numbers, by its index, field number, or position in the row."""
    if not layout.numeric:
        return np.zeros(len(indices), np.bool_)
    if layout.columns is None:
        keys = indices
    else:
        keys = np.arange(len(indices)) - np.repeat(np.cumsum(lengths) - lengths, lengths) if fields is None else fields
    return np.isin(keys, list(layout.numeric))


def _are_valid(tokens: Tokens, indices: npt.NDArray[np.int64], layout: LibsvmLayout) -> bool:
    """Whether values are finite, values of ids are 1 where required, and each entry has a named field, if any."""
    if pc.all(pc.is_finite(tokens.values)).as_py() is False:
        return False
    ids_alone = layout.columns is not None or layout.drops_values
    if ids_alone and not (tokens.numeric | (tokens.values.to_numpy() == 1.0)).all():
        return False
    if layout.columns is None:
        return not has_repeated_keys(indices[tokens.numeric], tokens.entry_rows[tokens.numeric])
    if tokens.fields is None:
        return bool((tokens.lengths == len(layout.columns)).all())
    if not ((tokens.fields >= 0) & (tokens.fields < len(layout.columns))).all():
        return False
    is_single = np.isin(tokens.fields, list(layout.single))
    keys = tokens.entry_rows[is_single] * len(layout.columns) + tokens.fields[is_single]
    return len(np.unique(keys)) == len(keys)


def _parse_row(record: bytes, layout: LibsvmLayout) -> tuple[str, str, list[tuple[int, str, float]]]:
    tokens = split_row(record)
    if not tokens or ":" in tokens[0]:
        raise _malformed(tokens[0] if tokens else "", "a label first")
    label, query, rest = tokens[0], "", tokens[1:]
    if layout.has_query:
        if not rest or not rest[0].startswith(_QUERY):
            raise _malformed(rest[0] if rest else "", "qid:NUMBER after the label, as in the first row")
        query, rest = rest[0][len(_QUERY) :], rest[1:]
    entries = [_entry(token, layout) for token in rest]
    if layout.columns is not None:
        _check_fields(entries, layout, layout.columns)
    else:
        _check_indices(entries, layout)
    return label, query, entries


def _entry(token: str, layout: LibsvmLayout) -> tuple[int, str, float]:
    parts = token.split(":")
    if len(parts) != (3 if layout.has_fields else 2) or not all(parts):
        raise _malformed(token, "field:index:value" if layout.has_fields else "index:value")
    field = parse_integer(parts[0], _NO_MISSING) if layout.has_fields else 0
    parse_integer(parts[-2], _NO_MISSING)
    value = parse_float(parts[-1], _NO_MISSING)
    assert field is not None
    assert value is not None
    return field, parts[-2], value


def _check_indices(entries: Sequence[tuple[int, str, float]], layout: LibsvmLayout) -> None:
    seen: set[int] = set()
    for _, text, value in entries:
        index = int(text)
        if index not in layout.numeric:
            if layout.drops_values and value != 1.0:
                hint = f"add {index} to `numeric` of the source and make it a numeric feature"
                received = f"received value {value:g} of index {index}; `ids` alone would drop it"
                raise RejectedCell(rejection_reason(WRONG_VALUE, received, hint))
        elif index in seen:
            raise RejectedCell(
                rejection_reason(TWICE, f"received index {index} twice; it is under `numeric`", "correct the row")
            )
        seen.add(index)


def _check_fields(entries: Sequence[tuple[int, str, float]], layout: LibsvmLayout, columns: Sequence[str]) -> None:
    hint = "correct the row, or correct `columns` of the source"
    if not layout.has_fields and len(entries) != len(columns):
        raise RejectedCell(
            rejection_reason(WRONG_FIELDS, f"received {len(entries)} entries for {len(columns)} columns", hint)
        )
    seen: set[int] = set()
    for place, (number, index, value) in enumerate(entries):
        field = number if layout.has_fields else place
        if not 0 <= field < len(columns):
            raise RejectedCell(
                rejection_reason(WRONG_FIELDS, f"received field {field} for {len(columns)} columns", hint)
            )
        if value != 1.0 and field not in layout.numeric:
            received = f"received value {value:g} of id {index}; {columns[field]!r} holds ids, all of value 1"
            hint = f"add {columns[field]!r} to `numeric` of the source and make it a numeric feature"
            raise RejectedCell(rejection_reason(WRONG_FIELDS, received, hint))
        if field in seen and field in layout.single:
            hint = "correct the row" if field in layout.numeric else "declare its feature `kind: bag`"
            raise RejectedCell(rejection_reason(WRONG_FIELDS, f"received field {field} ({columns[field]}) twice", hint))
        seen.add(field)


def _malformed(token: str, expected: str) -> RejectedCell:
    return RejectedCell(
        rejection_reason(MALFORMED, f"received {shorten(token)}, expected {expected}", "correct the row")
    )
