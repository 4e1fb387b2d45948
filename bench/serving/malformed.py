"""Requests that are wrong in drawn ways, as bytes: bodies, heads, lengths and values."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

_STRINGS = ("", "x", "-1", "9" * 400, "\x00", "\ud83d", "1e999", "'; drop table", "../../etc/passwd", "NaN", "é" * 2000)
_NUMBERS = (0, -1, 2**31, 2**63, -(2**63) - 1, 2**70, 10**400, 1e308, -1e-320, 0.1)
_ENDPOINTS = ("/v1/predict", "/v1/rank", "/v2/models/shop/infer", "/v2/models/shop/versions/1/infer", "/admin/status")
_ARROW = "application/vnd.apache.arrow.stream"
_KINDS = ("application/json", "application/json", _ARROW, "text/x", "")
_ARROW_TYPES = (
    pa.decimal128(30, 2), pa.decimal256(50, 3), pa.timestamp("us", "UTC"), pa.timestamp("ns", "Nowhere/Zone"),
    pa.timestamp("s", "+99:99"), pa.float16(), pa.uint64(), pa.binary(), pa.dictionary(pa.int8(), pa.string()),
)  # fmt: skip
_HEADERS = ("", "", "", "Content-Encoding: gzip\r\n", "X-Deadline-Ms: -5\r\n", "Expect: 100-continue\r\n")


def value(draw: random.Random, depth: int = 0) -> Any:
    """Returns a value of any JSON type."""
    kind = draw.randrange(8 if depth < 4 else 5)
    if kind == 0:
        return None
    if kind == 1:
        return draw.random() < 0.5
    if kind == 2:
        return draw.choice(_NUMBERS)
    if kind in {3, 4}:
        return draw.choice(_STRINGS)
    if kind == 5:
        return [value(draw, depth + 1) for _ in range(draw.randrange(5))]
    if kind == 6:
        return {draw.choice(_STRINGS): value(draw, depth + 1) for _ in range(draw.randrange(4))}
    deep: Any = []
    for _ in range(draw.choice((5, 40, 400))):
        deep = [deep]
    return deep


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Returns bytes with some changed, removed, or repeated."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 6)):
        if not changed:
            break
        at = draw.randrange(len(changed))
        how = draw.randrange(4)
        if how == 0:
            changed[at] = draw.randrange(256)
        elif how == 1:
            del changed[at : at + draw.randint(1, 20)]
        elif how == 2:
            changed[at:at] = changed[at : at + draw.randint(1, 60)]
        else:
            changed[at:at] = draw.choice((b"{", b"]", b"\xff", b'"', b"null", b"1e400", b"\\u0000"))
    return bytes(changed)


def arrow_stream(row: dict[str, Any], draw: random.Random) -> bytes:
    """Returns a row as an Arrow IPC stream, often with a column of an unusual type, and with few bytes changed."""
    columns = {name: pa.array([each]) for name, each in row.items()}
    if draw.random() < 0.7:
        kind = draw.choice(_ARROW_TYPES)
        number = pa.array([draw.randrange(1, 100)])
        is_text = pa.types.is_binary(kind) or pa.types.is_dictionary(kind)
        columns[draw.choice(list(row))] = (number.cast(pa.string()) if is_text else number).cast(kind)
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    changed = bytearray(sink.getvalue().to_pybytes())
    for _ in range(draw.randint(0, 4)):
        changed[draw.randrange(len(changed))] = draw.choice((0, 1, 127, 128, 255, draw.randrange(256)))
    return bytes(changed)


def malformed_requests(rows: Sequence[dict[str, Any]], count: int, headers: str = "", seed: int = 0) -> Iterator[bytes]:
    """Yields requests, most of which no server should accept, as bytes of HTTP/1.1.

    Args:
        rows: good rows.
        count: how many.
        headers: headers that each has, each with its end of line.
        seed: of the draws.
    """
    draw = random.Random(seed)
    for _ in range(count):
        path = draw.choice(_ENDPOINTS)
        good = draw.choice(rows)
        row = dict(good)
        if draw.random() < 0.7:
            row[draw.choice(list(row))] = value(draw)
        if draw.random() < 0.2:
            row.pop(draw.choice(list(row)))
        bodies: dict[str, Any] = {
            "/v1/predict": {"rows": [row] * draw.choice((0, 1, 1, 3)), "deadline_ms": value(draw)},
            "/v1/rank": {"context": row, "candidates": [row, value(draw)], "label": value(draw), "top": value(draw)},
        }
        tensors = [
            {"name": name, "datatype": draw.choice(("BYTES", "INT64", "FP32", "BOOL", "X")), "shape": value(draw),
             "data": [each], "parameters": {"binary_data_size": draw.choice(_NUMBERS)}}
            for name, each in row.items()
        ]  # fmt: skip
        body = json.dumps(bodies.get(path, {"inputs": tensors, "outputs": value(draw)})).encode()
        if draw.random() < 0.5:
            body = mutated(body, draw)
        if draw.random() < 0.03:
            body = b"[" * draw.choice((100, 100_000))
        kind = draw.choice(_KINDS)
        if kind == _ARROW and path == "/v1/predict" and draw.random() < 0.8:
            body = arrow_stream(good, draw)
        length = draw.choice((len(body), len(body), len(body), len(body), 0, len(body) + 5, -1, 2**63))
        more = draw.choice(_HEADERS)
        more += draw.choice(("", "", f"Inference-Header-Content-Length: {draw.choice(_NUMBERS)}\r\n"))
        head = f"{draw.choice(('POST', 'POST', 'POST', 'GET', 'PUT'))} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}"
        head += f"Content-Type: {kind}\r\n{more}Content-Length: {length}\r\n\r\n"
        encoded = head.encode()
        yield (mutated(encoded, draw) if draw.random() < 0.1 else encoded) + body
