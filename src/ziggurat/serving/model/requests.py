"""Requests of several rows that are predicted together.

A request to rank has one context and B candidates. The columns of the context are encoded and looked up once, and the
rows of tables that were found are then repeated; the predictions equal those of B whole rows to the bit.

Shape legend: B rows, F dense features.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.data.readers.blocks import BadRow, RawBlock
from ziggurat.serving.artefact.manifest import Manifest
from ziggurat.serving.model.given_rows import GivenRows, JoinedRows
from ziggurat.serving.model.scorer import Floats, Scorer
from ziggurat.serving.tables.inputs import Ids, Inputs, ids_of
from ziggurat.serving.tables.lookup import Reading

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EncodedRequests:
    """The encoded rows of one or several requests of one kind.

    Attributes:
        size: B.
        dense_BF: the dense features.
        ids: feature -> ids of B rows, or of the contexts' rows if it is in ``shared``.
        shared: the features of the contexts.
        contexts: how many contexts there are.
        context_of: which context each row has (B,); None without contexts.
    """

    size: int
    dense_BF: Floats
    ids: dict[str, Ids]
    shared: frozenset[str]
    contexts: int
    context_of: Ints | None


def encode_rows(
    manifest: Manifest, parts: Sequence[tuple[JoinedRows, RawBlock]], sizes: Sequence[int]
) -> EncodedRequests | list[tuple[JoinedRows, BadRow]]:
    """Encodes the rows of requests, or returns those that cannot be encoded.

    Args:
        manifest: the manifest of the model.
        parts: the rows of each side, and the block that was read of them.
        sizes: how many rows each request has.
    """
    size = sum(sizes)
    context_of = _context_of((rows.kinds.place for rows, _ in parts), sizes)
    dense_BF = np.empty((size, len(manifest.dense)), np.float32)
    ids: dict[str, Ids] = {}
    shared = set[str]()
    bad: list[tuple[JoinedRows, BadRow]] = []
    for rows, block in parts:
        encoded = rows.kinds.side.transform.apply(block, labelled=False)
        bad += [(rows, row) for row in encoded.bad]
        if bad:
            continue
        names = set(encoded.batch.schema.names)
        is_context = rows.kinds.place == "context"
        for number, name in enumerate(manifest.dense):
            if name in names:
                numbers = _numbers(encoded.batch.column(name))
                dense_BF[:, number] = numbers[context_of] if is_context else numbers
        found = {name: ids_of(encoded.batch.column(name)) for name in manifest.features if name in names}
        ids |= found
        if is_context:
            shared |= found.keys()
    return bad or EncodedRequests(size, dense_BF, ids, frozenset(shared), len(sizes), context_of)


def encode_by_value(
    manifest: Manifest, parts: Sequence[Sequence[GivenRows]], sizes: Sequence[int], rest: EncodedRequests | None
) -> EncodedRequests | None:
    """Encodes the rows of requests value by value; None if a value must be read as a table.

    Args:
        manifest: the manifest of the model.
        parts: for each side, the rows of each request, which :meth:`GivenRows.by_value` has taken.
        sizes: how many rows each request has.
        rest: what the other features of the same rows were encoded to; None if there are none.
    """
    size = sum(sizes)
    context_of = _context_of((given[0].place for given in parts), sizes)
    dense_BF = np.empty((size, len(manifest.dense)), np.float32) if rest is None else rest.dense_BF
    ids: dict[str, Ids] = {} if rest is None else dict(rest.ids)
    shared = set[str]() if rest is None else set(rest.shared)
    for given in parts:
        found = given[0].side.plain.encode([each.values for each in given if each.values is not None])
        if found is None:
            return None
        is_context = given[0].place == "context"
        for name, numbers in found.numbers.items():
            dense_BF[:, manifest.dense.index(name)] = numbers[context_of] if is_context else numbers
        ids |= found.ids
        if is_context:
            shared |= found.ids.keys()
    return EncodedRequests(size, dense_BF, ids, frozenset(shared), len(sizes), context_of)


def predict_requests(
    scorer: Scorer, requests: Sequence[EncodedRequests], reading: Reading = contextlib.nullcontext
) -> Floats:
    """Returns the columns (B, C) of the rows of all requests, in their order; ``reading`` is that of a look-up."""
    size = sum(each.size for each in requests)
    dense_BF = requests[0].dense_BF if len(requests) == 1 else np.concatenate([each.dense_BF for each in requests])
    ids = {name: Ids.joined([each.ids[name] for each in requests]) for name in scorer.manifest.features}
    shared = frozenset[str]().union(*(each.shared for each in requests))
    alike: dict[tuple[bool, ...], Ints] = {}
    places: dict[str, Ints] = {}
    for name in shared:
        given = tuple(name in each.shared for each in requests)
        if given not in alike:
            alike[given] = _places(given, requests)
        places[name] = alike[given]
    return scorer.columns_of_requests(Inputs(size, dense_BF, ids), places, reading)


def _context_of(places: Iterable[str], sizes: Sequence[int]) -> Ints | None:
    """Returns which context each row has, None if no side is a context."""
    return np.repeat(np.arange(len(sizes)), sizes) if "context" in places else None


def _places(given: Sequence[bool], requests: Sequence[EncodedRequests]) -> Ints:
    """Returns which row of its ids each row has, of a feature that the contexts of these requests have given."""
    parts: list[Ints] = []
    start = 0
    for by_context, each in zip(given, requests, strict=True):
        if by_context and each.context_of is not None:
            parts.append(each.context_of + start)
            start += each.contexts
        else:
            parts.append(np.arange(start, start + each.size))
            start += each.size
    return np.concatenate(parts)


def _numbers(column: pa.Array) -> Floats:
    return column.to_numpy(zero_copy_only=False)
