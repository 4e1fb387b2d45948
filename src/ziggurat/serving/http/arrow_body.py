"""Requests and answers as Arrow IPC streams.

A stream may say that few bytes unfold to many: compressed buffers, views that repeat one text, encoded runs. Such
streams are refused before they are unfolded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
from pyarrow import ipc

from ziggurat.core.schema import duplicates
from ziggurat.serving.http.json_body import check_rows
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.refusals import HttpRefused

pc: Any = pyarrow.compute
ARROW_STREAM = "application/vnd.apache.arrow.stream"
_PLAIN: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_timestamp,
    pa.types.is_date,
    pa.types.is_decimal,
    pa.types.is_null,
)
_HINT = "send an Arrow IPC stream of plain columns without compression"


def read_stream(data: bytes, limits: ServingLimits) -> pa.Table:
    """Returns the rows of an Arrow IPC stream.

    Raises:
        HttpRefused: it is none, is compressed, has columns of unusual types, or too many rows.
    """
    try:
        if _is_compressed(data):
            raise HttpRefused(415, "compressed_arrow", "the Arrow stream is compressed", _HINT)
        with ipc.open_stream(pa.BufferReader(data)) as reader:
            _check_schema(reader.schema, limits)
            batches: list[pa.RecordBatch] = []
            rows = 0
            for batch in reader:
                rows += batch.num_rows
                if rows > limits.rows:
                    break
                batch.validate(full=True)
                batches.append(batch)
        check_rows(rows, "rows", limits)
        table = pa.Table.from_batches(batches, reader.schema)
        _check_dictionaries(table, limits)
    except (pa.ArrowException, OSError, EOFError, ValueError, struct.error, IndexError, OverflowError) as error:
        message = " ".join(str(error).split())[:200]
        raise HttpRefused(400, "invalid_arrow", f"the body is no Arrow IPC stream: {message}", _HINT) from None
    return table


def write_stream(outputs: Mapping[str, npt.NDArray[np.float32]], metadata: Mapping[str, str]) -> bytes:
    """Returns predictions as an Arrow IPC stream, with the version in the schema's metadata."""
    table = pa.table({name: pa.array(values) for name, values in outputs.items()})
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema.with_metadata(dict(metadata))) as writer:
        writer.write_table(table.replace_schema_metadata(dict(metadata)))
    return sink.getvalue().to_pybytes()


def _check_schema(schema: pa.Schema, limits: ServingLimits) -> None:
    if twice := duplicates(schema.names):
        raise HttpRefused(422, "invalid_rows", f"rows: column {twice[0]!r} occurs more than once", "name it once")
    for field in schema:
        if not _is_plain(field.type, limits.depth):
            raise HttpRefused(
                415, "unusual_type", f"rows, column {field.name!r}: is of type {str(field.type)[:100]}", _HINT
            )


def _is_plain(kind: pa.DataType, depth: int) -> bool:
    if depth < 0:
        return False
    if pa.types.is_struct(kind):
        return all(_is_plain(field.type, depth - 1) for field in kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = kind.value_type  # nulls and bits need next to no bytes, and would unfold to many values
        return not (pa.types.is_null(inner) or pa.types.is_boolean(inner)) and _is_plain(inner, depth - 1)
    if pa.types.is_dictionary(kind):
        return any(is_of(kind.value_type) for is_of in _PLAIN)
    return any(is_of(kind) for is_of in _PLAIN)


def _check_dictionaries(table: pa.Table, limits: ServingLimits) -> None:
    """Refuses dictionaries whose values would be more bytes than a body may have once each row holds its own."""
    for column in table.columns:
        for chunk in _dictionaries(column.chunks):
            values = chunk.dictionary
            if pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or not len(values):
                continue
            lengths = pc.binary_length(values) if not pa.types.is_boolean(values.type) else None
            used = 0 if lengths is None else pc.sum(lengths.take(chunk.indices)).as_py() or 0
            if used > limits.body_bytes:
                raise HttpRefused(413, "too_large", f"a dictionary column holds {used:,} bytes of text", _HINT)


def _dictionaries(arrays: Sequence[pa.Array]) -> list[Any]:
    found: list[Any] = []
    for each in arrays:
        if pa.types.is_dictionary(each.type):
            found.append(each)
        elif pa.types.is_struct(each.type):
            found += _dictionaries(each.flatten())
        elif pa.types.is_list(each.type) or pa.types.is_large_list(each.type) or pa.types.is_fixed_size_list(each.type):
            found += _dictionaries([each.flatten()])
    return found


_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_DATA_OF_DICTIONARY, _COMPRESSION = 1, 3


def _is_compressed(data: bytes) -> bool:
    """Returns whether a batch in the stream has compressed buffers, by the messages' flatbuffers alone."""
    at = 0
    while at + 8 <= len(data):
        marker, size = struct.unpack_from("<Ii", data, at)
        at += 8
        if marker != 0xFFFFFFFF:  # the form of before Arrow 0.15
            at, size = at - 4, marker
        if size <= 0 or at + size > len(data):
            return False
        message = memoryview(data)[at : at + size]
        root = struct.unpack_from("<I", message, 0)[0]
        kind_at, header_at = (_field(message, root, which) for which in (_HEADER_TYPE, _HEADER))
        length_at = _field(message, root, _BODY_LENGTH)
        kind = message[kind_at] if kind_at else 0
        if kind in {_RECORD_BATCH, _DICTIONARY_BATCH} and header_at:
            table = header_at + struct.unpack_from("<I", message, header_at)[0]
            if kind == _DICTIONARY_BATCH:
                inner = _field(message, table, _DATA_OF_DICTIONARY)
                table = inner + struct.unpack_from("<I", message, inner)[0] if inner else 0
            if table and _field(message, table, _COMPRESSION):
                return True
        body = struct.unpack_from("<q", message, length_at)[0] if length_at else 0
        if body < 0:
            return False
        at += size + body
    return False


def _field(message: memoryview, table: int, number: int) -> int:
    """Returns where a field of a flatbuffer's table is; 0 if it has none."""
    entries = table - struct.unpack_from("<i", message, table)[0]
    if entries < 0:
        raise ValueError("a table of its metadata lies outside it")
    if 4 + 2 * number >= struct.unpack_from("<H", message, entries)[0]:
        return 0
    offset = struct.unpack_from("<H", message, entries + 4 + 2 * number)[0]
    return table + offset if offset else 0
