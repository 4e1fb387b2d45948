"""Requests of several rows that are predicted together.

A request to rank has one context and B candidates. The columns of the context are encoded and looked up once, and the
rows of tables that were found are then repeated; the predictions equal those of B whole rows to the bit.

Shape legend: B rows, F dense features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.data.readers.blocks import BadRow, RawBlock
from ziggurat.features.transform import Transform
from ziggurat.serving.artefact.manifest import Manifest
from ziggurat.serving.model.scorer import Floats, Scorer
from ziggurat.serving.tables.inputs import Ids, Inputs, ids_of

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """Columns of a request.

    Attributes:
        transform: encodes them.
        block: their rows; one row if it is a context.
        is_context: whether the row holds for all rows of the request.
    """

    transform: Transform
    block: RawBlock
    is_context: bool = False


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """An encoded request.

    Attributes:
        size: B.
        dense_BF: its dense features.
        ids: feature -> ids of B rows, or of one row if it is in ``shared``.
        shared: the features of the context.
    """

    size: int
    dense_BF: Floats
    ids: dict[str, Ids]
    shared: frozenset[str]


def encode_request(manifest: Manifest, parts: Sequence[Part], size: int) -> EncodedRequest | list[tuple[Part, BadRow]]:
    """Encodes the parts of a request, or returns its rows that cannot be encoded."""
    dense_BF = np.empty((size, len(manifest.dense)), np.float32)
    ids: dict[str, Ids] = {}
    shared = set[str]()
    bad: list[tuple[Part, BadRow]] = []
    for part in parts:
        encoded = part.transform.apply(part.block, labelled=False)
        bad += [(part, row) for row in encoded.bad]
        if bad:
            continue
        names = set(encoded.batch.schema.names)
        for number, name in enumerate(manifest.dense):
            if name in names:
                dense_BF[:, number] = _numbers(encoded.batch.column(name))
        found = {name: ids_of(encoded.batch.column(name)) for name in manifest.inputs if name in names}
        ids |= found
        if part.is_context:
            shared |= found.keys()
    return bad or EncodedRequest(size, dense_BF, ids, frozenset(shared))


def predict_requests(scorer: Scorer, requests: Sequence[EncodedRequest]) -> Floats:
    """Returns the columns (B, C) of the rows of all requests, in their order."""
    size = sum(each.size for each in requests)
    dense_BF = requests[0].dense_BF if len(requests) == 1 else np.concatenate([each.dense_BF for each in requests])
    ids = {name: Ids.joined([each.ids[name] for each in requests]) for name in scorer.manifest.inputs}
    shared = frozenset[str]().union(*(each.shared for each in requests))
    places = {name: _places(name, requests) for name in shared}
    return scorer.columns_of_requests(Inputs(size, dense_BF, ids), places)


def _places(name: str, requests: Sequence[EncodedRequest]) -> Ints:
    parts: list[Ints] = []
    start = 0
    for each in requests:
        is_shared = name in each.shared
        parts.append(np.full(each.size, start) if is_shared else np.arange(start, start + each.size))
        start += 1 if is_shared else each.size
    return np.concatenate(parts)


def _numbers(column: pa.Array) -> Floats:
    return column.to_numpy(zero_copy_only=False)
