"""Look-ups by compiled kernels, in memory and on disk behind small caches, equal plain ones to the bit."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from ziggurat.serving.artefact.manifest import Manifest, Source, TableEntry
from ziggurat.serving.artefact.row_codec import PRECISIONS, Precision, encode, row_bytes
from ziggurat.serving.tables.inputs import Ids, Inputs
from ziggurat.serving.tables.lookup import Lookup, TableUnreadable
from ziggurat.serving.tables.mapped_rows import MappedRows
from ziggurat.serving.tables.plain_lookup import PlainLookup
from ziggurat.serving.tables.row_cache import RowBytesCache
from ziggurat.serving.tables.stores import DiskTable, MemoryTable

DIMS = {"ids": 16, "bags": 7, "means": 33, "divided": 9, "wide": 1500, "history": 8}
ROWS = {"ids": 5_000, "bags": 900, "means": 3_000, "divided": 500, "wide": 70, "history": 400}


def manifest_of(precision: Precision) -> Manifest:
    entries = [
        TableEntry(
            name, ROWS[name], dim, f"{name}.rows", "mean" if name in {"means", "divided"} else "sum",
            ("history", "item") if name == "history" else (name,), {"history": 5} if name == "history" else {}, "item",
            name == "divided",
        )
        for name, dim in DIMS.items()
    ]  # fmt: skip
    inputs = ("ids", "bags", "means", "divided", "wide", "history", "item")
    source = Source("shop", "0", 1, "0", "0")
    return Manifest(source, precision, 100, (), (), inputs, tuple(entries), (), {}, {}, {})


def write_tables(folder: Path, manifest: Manifest) -> None:
    random = np.random.default_rng(0)
    for entry in manifest.tables:
        rows = random.normal(size=(entry.rows, entry.dim)).astype(np.float32)
        with (folder / entry.file).open("wb") as file:
            entry.layout(manifest.precision).write(file, encode(rows, manifest.precision, entry.name))


def drawn(size: int, seed: int) -> Inputs:
    """Draws inputs in which some bags are empty, and rows recur."""
    random = np.random.default_rng(seed)

    def bag(rows: int, longest: int) -> Ids:
        lengths = random.integers(0, longest + 1, size)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return Ids((rows * random.random(int(offsets[-1])) ** 3).astype(np.int64), offsets)

    single = {name: Ids(random.integers(0, ROWS[table], size), None) for name, table in
              (("ids", "ids"), ("wide", "wide"), ("item", "history"))}  # fmt: skip
    longest = {"bags": 9, "means": 30, "divided": 9, "history": 8}
    bags = {name: bag(ROWS[name], most) for name, most in longest.items()}
    return Inputs(size, np.zeros((size, 0), np.float32), {**single, **bags})


def on_disk(folder: Path, manifest: Manifest, entry: TableEntry, cache_bytes: int) -> DiskTable:
    cache = RowBytesCache(cache_bytes, row_bytes(entry.dim, manifest.precision), entry.rows)
    return DiskTable(folder / entry.file, entry, manifest.precision, cache)


def open_lookup(folder: Path, manifest: Manifest, cache_bytes: int | None, disk: tuple[str, ...]) -> Lookup:
    return Lookup(
        manifest,
        {
            entry.name: on_disk(folder, manifest, entry, cache_bytes)
            if cache_bytes is not None and entry.name in disk
            else MemoryTable(folder / entry.file, entry, manifest.precision)
            for entry in manifest.tables
        },
    )


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("cache_bytes", [None, 2_000, 1_000_000])
def test_all_ways_give_the_same_bits(precision: Precision, cache_bytes: int | None, tmp_path: Path) -> None:
    manifest = manifest_of(precision)
    write_tables(tmp_path, manifest)
    plain = PlainLookup(
        manifest, {entry.name: MappedRows(tmp_path / entry.file, entry, precision) for entry in manifest.tables}
    )
    lookup = open_lookup(tmp_path, manifest, cache_bytes, tuple(DIMS))
    for seed, size in enumerate((1, 7, 300, 0, 40)):
        inputs = drawn(size, seed)
        expected, expected_masks = plain(inputs)
        found, masks = lookup(inputs)
        assert list(found) == list(expected)
        for name, rows in expected.items():
            assert torch.equal(found[name], rows), (name, size)
        assert torch.equal(masks["history"], expected_masks["history"])
    if cache_bytes == 1_000_000:
        reads = lookup.figures.total.reads
        lookup(drawn(40, 4))
        assert lookup.figures.total.reads - reads < reads / 20  # nearly all rows of the last inputs are in the caches
    lookup.close()


def test_threads_share_tables_on_disk(tmp_path: Path) -> None:
    manifest = manifest_of("int8")
    write_tables(tmp_path, manifest)
    lookup = open_lookup(tmp_path, manifest, 3_000, ("ids", "bags", "history"))
    inputs = [drawn(50, seed) for seed in range(8)]
    expected = [open_lookup(tmp_path, manifest, None, ())(each)[0] for each in inputs]
    wrong: list[str] = []

    def look_up(first: int) -> None:
        for number in range(40):
            at = (first + number) % len(inputs)
            found, _ = lookup(inputs[at])
            wrong.extend(name for name, rows in expected[at].items() if not torch.equal(found[name], rows))

    threads = [threading.Thread(target=look_up, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    lookup.close()


def test_a_file_that_ends_too_early_is_named(tmp_path: Path) -> None:
    manifest = manifest_of("fp32")
    write_tables(tmp_path, manifest)
    lookup = open_lookup(tmp_path, manifest, 3_000, ("ids", "bags"))
    with (tmp_path / "ids.rows").open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(TableUnreadable, match=r"ids\.rows: cannot be read at byte") as caught:
        lookup(drawn(50, 0))
    assert caught.value.table == "ids"
    assert lookup.figures.taken().tables["ids"].errors == 1
    lookup.close()
