"""Damaged files of every format: a small log is written in each, and its bytes are harmed."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq

from bench.system.fuzz_texts import LABEL, Drawn, compressed

ROWS = 120


def intact() -> list[Drawn]:
    """Returns the log in every format."""
    drawn = random.Random(7)
    columns = {
        "user": [drawn.randrange(20) for _ in range(ROWS)],
        "item": [f"item {drawn.randrange(9)}" for _ in range(ROWS)],
        "price": [round(drawn.random() * 9, 2) for _ in range(ROWS)],
        LABEL: [place % 2 for place in range(ROWS)],
    }
    table = pa.table(columns)
    rows = list(zip(*columns.values(), strict=True))
    csv = "".join(",".join(map(str, row)) + "\n" for row in [tuple(columns), *rows]).encode()
    lines = "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows).encode()
    libsvm = "".join(f"{row[3]} {1 + row[0]}:1 {100 + place % 9}:1\n" for place, row in enumerate(rows)).encode()
    texts = [Drawn(f"log.csv{suffix}", compressed(csv, suffix)) for suffix in ("", ".gz", ".bz2", ".xz", ".zip")]
    return [
        *texts,
        Drawn("log.tsv", csv.replace(b",", b"\t")),
        Drawn("utf16.csv", csv.decode().encode("utf-16")),
        Drawn("log.csv.zst", pa.compress(csv, "zstd", asbytes=True)),
        Drawn("log.jsonl", lines),
        Drawn("log.jsonl.gz", compressed(lines, ".gz")),
        Drawn("log.libsvm", libsvm),
        Drawn("log.parquet", _written(lambda sink: pq.write_table(table, sink, row_group_size=50))),
        Drawn("log.orc", _written(lambda sink: orc.write_table(table, sink))),
        Drawn("log.feather", _written(lambda sink: feather.write_feather(table, sink))),
        Drawn("log.arrow", _written(lambda sink: _write_ipc(table, sink))),
    ]


def _written(write: Callable[[io.BytesIO], object]) -> bytes:
    sink = io.BytesIO()
    write(sink)
    return sink.getvalue()


def _write_ipc(table: pa.Table, sink: io.BytesIO) -> None:
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)


def harmed(data: bytes, seed: int) -> bytes:
    """Returns ``data`` with a few harms: cut, overwritten, with parts missing, doubled, or in other places."""
    drawn = random.Random(seed)
    for _ in range(drawn.choice([1, 1, 1, 2, 5])):
        if not data:
            break
        place = drawn.choice([drawn.randrange(len(data)), drawn.randrange(min(64, len(data))), max(0, len(data) - 40)])
        part = data[place : place + drawn.choice([1, 1, 2, 8, 64, 512])]
        rest = data[place + len(part) :]
        changed = drawn.choice(
            [
                bytes(len(part)),
                drawn.randbytes(len(part)),
                bytes(byte ^ 1 << drawn.randrange(8) for byte in part),
                b"",
                part * 2,
            ]
        )
        data = data[:place] + changed + (b"" if drawn.random() < 0.15 else rest)
    return data
