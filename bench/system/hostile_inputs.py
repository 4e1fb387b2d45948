"""Hostile configs and logs: texts that grow, files that become huge, names that lead elsewhere, cells without data."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.system.hostile_world import (
    PREPARE,
    STEPS,
    Case,
    Harm,
    World,
    experiment,
    folder,
    link,
    pipe,
    sparse,
    write,
)

Config = dict[str, Any]

MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{number}: &a{number} {{<<: [{', '.join([f'*a{number - 1}'] * 9)}], k{number}: 1}}\n" for number in range(1, 12)
)
ALIASES = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
_TEXTS: dict[str, str | bytes] = {
    "nested lists": "[" * 5000,
    "nested sections": "{a: " * 5000,
    "nested keys": "? " * 5000,
    "nested lines": "- " * 5000,
    "aliases": ALIASES,
    "merges": MERGES,
    "a section in itself": "a: &a {b: *a}",
    "a section merged into itself": "a: &a {<<: *a}",
    "a number of 10^6 digits": "a: " + "9" * 10**6,
    "a hexadecimal number of 10^6 digits": "a: 0x" + "f" * 10**6,
    "a time of 10^5 parts": "%YAML 1.1\n---\na: 1" + ":59" * 10**5,
    "an object of Python": "!!python/object/apply:os.system [touch /tmp/harm]",
    "no text": b"\xff\xfe\x00\x01" * 100,
    "half a character": 'name: "\\ud800"',
    "a key twice": "name: a\nname: b",
    "2 MB of keys": "\n".join(f"k{number}: 1" for number in range(60_000)),
    "a text of 3 MB": "name: " + "x" * 3_000_000,
    "nothing": "",
}


def configs() -> list[Case]:
    """Returns cases of configs."""
    texts = [
        Case(f"config: {name}", lambda w, text=text: write(w.inside / "exp.yaml", text), (PREPARE,), "exp.yaml")
        for name, text in _TEXTS.items()
    ]
    files: dict[str, Harm] = {
        "a pipe": lambda w: pipe(w.inside / "exp.yaml"),
        "a device": lambda w: link(w.inside / "exp.yaml", "/dev/zero"),
        "a folder": lambda w: folder(w.inside / "exp.yaml"),
        "endless": lambda w: sparse(w.inside / "exp.yaml"),
    }
    changes: dict[str, tuple[Callable[[Config], Any], str]] = {
        "a name above": (lambda c: c.update(name="../../outside/x"), "name"),
        "a name with a NUL": (lambda c: c.update(name="a\0b"), "name"),
        "a folder with a NUL": (lambda c: c["data"].update(folder="a\0b"), "data.folder"),
        "a table above": (lambda c: c["features"][0].update(table="../../../outside/x"), "table"),
        "a table with a line end": (lambda c: c["features"][0].update(table="a\nb"), "table"),
        "a table of 10^5 characters": (lambda c: c["features"][0].update(table="x" * 10**5), "table"),
        "a feature with an escape": (lambda c: c["features"][0].update(name="\x1b[2J", column="user"), "name"),
        "a dim of 10^12": (lambda c: c["embeddings"].update(dim=10**12), ""),
        "layers of 10^9": (lambda c: c["model"]["deep"].update(hidden=[10**9, 10**9]), ""),
        "a batch of 10^18": (lambda c: c["training"].update(batch_size=10**18), ""),
        "a seed of 400 digits": (lambda c: c["training"].update(seed=10**399), ""),
        "a store in memory": (lambda c: c["checkpoints"].update(store="memory://x"), "store"),
        "a store of commands": (lambda c: c["checkpoints"].update(store="simplecache::file:///etc"), "store"),
        "an unknown class to import": (lambda c: c.update(model={"import": "os:system"}), "model"),
        "a delimiter of nothing": (lambda c: c["data"]["source"].update(delimiter=""), "delimiter"),
    }
    return [
        *texts,
        *(Case(f"config: {name}", harm, (PREPARE,), "exp.yaml") for name, harm in files.items()),
        *(
            Case(
                f"config with {name}",
                _changed(change),
                (("train", "exp.yaml", "--run", "new", "--prepared", "new-data"),),
                word,
            )
            for name, (change, word) in changes.items()
        ),
    ]


def _changed(change: Callable[[Config], Any]) -> Harm:
    def harm(world: World) -> None:
        values = experiment(STEPS)
        change(values)
        write(world.inside / "exp.yaml", json.dumps(values))

    return harm


def _bomb(codec: str, line: bytes) -> Callable[[Path], Any]:
    """Returns what writes 2 GB of lines, which are a few MB compressed."""

    def make(path: Path) -> None:
        with pa.CompressedOutputStream(str(path), codec) as stream:
            stream.write(b"user,item,y\n")
            for _ in range(128):
                stream.write(line * (2**24 // len(line)))

    return make


def _constant_parquet(path: Path) -> None:
    """Writes 5·10^7 equal rows in one row group, which are a few kB."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * (5 * 10**6), pa.int8()), pa.array([7], pa.int64()))
    whole = pa.chunked_array([column] * 10)
    pq.write_table(pa.table({"user": whole, "item": whole, "y": whole}), path, row_group_size=10**9)


def _cut_parquet(path: Path) -> None:
    pq.write_table(pa.table({"user": [1, 2], "item": [1, 2], "y": [0, 1]}), path)
    path.write_bytes(path.read_bytes()[:-30])


_LOGS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a gzip bomb of lines": ("log.csv.gz", _bomb("gzip", b"1,2,0\n")),
    "a gzip bomb of nothing": ("log.csv.gz", _bomb("gzip", b"\0" * 4096)),
    "a gzip bomb of line ends": ("log.csv.gz", _bomb("gzip", b"\n")),
    "a zstd bomb of lines": ("log.csv.zst", _bomb("zstd", b"1,2,0\n")),
    "a zstd bomb of line ends": ("log.csv.zst", _bomb("zstd", b"\n")),
    "a gzip bomb of JSON": ("log.jsonl.gz", _bomb("gzip", b'{"user": 1}\n')),
    "a cut gzip": ("log.csv.gz", lambda p: p.write_bytes(gzip.compress(b"user,item,y\n1,2,0\n" * 1000)[:-20])),
    "gzip that is none": ("log.csv.gz", lambda p: p.write_bytes(b"user,item,y\n1,2,0\n")),
    "a pipe": ("log.csv", pipe),
    "a device": ("log.csv", lambda p: link(p, "/dev/zero")),
    "a folder": ("log.csv", folder),
    "a link to itself": ("log.csv", lambda p: link(p, p.name)),
    "nothing": ("log.csv", lambda p: p.write_bytes(b"")),
    "NULs": ("log.csv", lambda p: p.write_bytes(b"\0" * 10**6)),
    "a line of 100 MB": ("log.csv", lambda p: p.write_bytes(b"user,item,y\n" + b"1" * 10**8)),
    "a quote that never ends": ("log.csv", lambda p: p.write_bytes(b'user,item,y\n"' + b"1,2,0\n" * 10**6)),
    "no text": ("log.csv", lambda p: p.write_bytes(bytes(range(256)) * 1000)),
    "numbers of 10^5 digits": ("log.csv", lambda p: p.write_bytes(b"user,item,y\n" + b"9" * 10**5 + b",2,0\n")),
    "100,000 columns": ("log.csv", lambda p: p.write_text(",".join(f"c{n}" for n in range(10**5)) + "\n1" * 3)),
    "column names with escapes": (
        "log.csv",
        lambda p: p.write_text(
            "user\x1b[2J,it\x07em,../../y\n" + "".join(f"{n % 9},{n % 7},{n % 2}\n" for n in range(500))
        ),
    ),
    "a column twice": ("log.csv", lambda p: p.write_text("user,user,y\n1,2,0\n" * 100)),
    "nested JSON": ("log.jsonl", lambda p: p.write_text(('{"user": ' + "[" * 10_000 + "]" * 10_000 + "}\n") * 9)),
    "JSON with huge numbers": (
        "log.jsonl",
        lambda p: p.write_text('{"user": 1e999, "item": ' + "9" * 5000 + ', "y": 1}\n'),
    ),
    "a key of JSON twice": ("log.jsonl", lambda p: p.write_text('{"user": 1, "user": 2, "item": 1, "y": 1}\n' * 99)),
    "libsvm with an index of 10^18": ("log.libsvm", lambda p: p.write_text("1 1:1 1000000000000000000:1\n" * 99)),
    "Parquet with 5·10^7 equal rows": ("log.parquet", _constant_parquet),
    "a cut Parquet file": ("log.parquet", _cut_parquet),
    "Parquet that is none": ("log.parquet", lambda p: p.write_bytes(b"PAR1" + b"\xff" * 1000 + b"PAR1")),
}


def logs() -> list[Case]:
    """Returns cases of logs: their config is inferred, they are prepared, and a run scores them."""
    return [
        Case(
            f"log: {name}",
            _log(file, make),
            (
                ("init", file, "--out", "found.yaml"),
                PREPARE,
                ("predict", "run", file, "--out", "predicted.jsonl" if "json" in file else "predicted.csv"),
            ),
        )
        for name, (file, make) in _LOGS.items()
    ]


def _log(file: str, make: Callable[[Path], Any]) -> Harm:
    def harm(world: World) -> None:
        (world.inside / "log.csv").unlink()
        make(world.inside / file)
        values = experiment(STEPS)
        kinds = {".csv": "csv", ".jsonl": "jsonl", ".libsvm": "libsvm", ".parquet": "parquet"}
        values["data"]["source"] = {"name": kinds["." + file.split(".")[1]], "files": [file]}
        write(world.inside / "exp.yaml", json.dumps(values))

    return harm
