"""Rows in a file: what is read is what was written, and what is not is told."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.small_disk import small_disk
from tests.storage.storage_kit import KINDS, WAYS, distinct, initial, name_of, overwrite, store, transfers
from ziggurat.core.errors import DataError
from ziggurat.storage.file_rows import FileRows, Shape, check_room

FILES = ("file", "packed")


def _refused(*_: object) -> int:
    ctypes.set_errno(errno.EOPNOTSUPP)
    return -1


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(KINDS),
    way=st.sampled_from(WAYS),
    rows=st.integers(1, 300),
    width=st.sampled_from([1, 4, 17, 126, 200]),
    seed=st.integers(0, 2**20),
)
def test_rows_are_what_was_last_written(kind: str, way: str, rows: int, width: int, seed: int, tmp_path: Path) -> None:
    draw = np.random.default_rng(seed)
    kept, ever = initial(width)(np.arange(rows)), np.zeros(rows, np.bool_)
    there = store(kind, tmp_path, rows, width, way)
    for _ in range(12):
        ids = distinct(draw, rows, 100)
        numbers = draw.normal(size=(len(ids), width)).astype(np.float32)
        there.write(ids, numbers)
        kept[ids], ever[ids] = numbers, True
        ids = distinct(draw, rows, 300)
        assert np.array_equal(there.read(ids), kept[ids])
        assert np.array_equal(there.written(ids), ever[ids])
    there.close()


@pytest.mark.parametrize("kind", FILES)
def test_odd_numbers_survive(kind: str, tmp_path: Path) -> None:
    there = store(kind, tmp_path, 10, 4)
    numbers = np.array([[np.nan, np.inf, -0.0, 1e-45]], np.float32)
    there.write(np.array([7]), numbers)
    assert there.read(np.array([7])).tobytes() == numbers.tobytes()
    there.close()


def test_where_records_lie() -> None:
    spread, packed = Shape(16, 512, packed=False), Shape(16, 512, packed=True)
    assert (spread.record, spread.block, spread.per_block) == (72, 512, 1)
    assert (packed.block, packed.per_block) == (512, 7)
    assert packed.file_bytes(15) == 3 * 512
    wide = Shape(200, 512, packed=True)
    assert (wide.block, wide.per_block) == (1024, 1)


@pytest.mark.parametrize("kind", FILES)
def test_traffic_is_counted(kind: str, tmp_path: Path) -> None:
    there = store(kind, tmp_path, 1000, 16)
    there.read(np.arange(0, 1000, 50))
    assert (there.traffic.reads, there.traffic.rows_read, there.traffic.rows_made) == (0, 20, 20)
    ids = np.array([3, 4, 500])
    there.write(ids, np.zeros((3, 16), np.float32))
    assert (there.traffic.writes, there.traffic.rows_written) == (2, 3)  # neighbours go together
    before = there.traffic.copy()
    there.read(ids)
    moved = there.traffic.since(before)
    assert (moved.reads, moved.writes, moved.rows_read, moved.rows_made) == (2, 0, 3, 0)
    blocks = 3 if kind == "file" else 2
    assert moved.read_bytes == blocks * 512
    assert moved.figures()["read_bytes"] == blocks * 512
    there.close()


def test_packed_rows_keep_their_neighbours_and_read_them_only_where_there_are_any(tmp_path: Path) -> None:
    there = store("packed", tmp_path, 100, 16)
    there.write(np.arange(14), np.ones((14, 16), np.float32))
    assert there.traffic.reads == 0  # nobody had written there
    there.write(np.array([3]), np.full((1, 16), 3, np.float32))
    assert there.traffic.reads == 1
    there.write(np.arange(7), np.full((7, 16), 5, np.float32))
    assert there.traffic.reads == 1  # the whole block is new
    assert np.array_equal(there.read(np.arange(14))[:, 0], [5] * 7 + [1] * 7)
    there.close()


@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_row_is_named(kind: str, tmp_path: Path) -> None:
    there = store(kind, tmp_path, 100, 16)
    ids = np.arange(0, 100, 10)
    there.write(ids, np.ones((10, 16), np.float32))
    assert isinstance(there, FileRows)
    at = 30 // there.shape.per_block * 512 + 30 % there.shape.per_block * there.shape.record
    overwrite(there, b"\x01", at + 20)
    with pytest.raises(DataError, match=r"table 'item': row 30 is not what was written there\n.*last checkpoint"):
        there.read(ids)
    assert np.array_equal(there.read(ids[ids != 30]), np.ones((9, 16)))
    there.close()


def test_rows_that_changed_places_are_noticed(tmp_path: Path) -> None:
    there = store("file", tmp_path, 10, 4)
    there.write(np.array([1, 2]), np.zeros((2, 4), np.float32))
    assert isinstance(there, FileRows)
    data = Path(name_of(there)).read_bytes()
    first, second = (data[k * 512 : (k + 1) * 512] for k in (1, 2))
    overwrite(there, second + first, 512)
    with pytest.raises(DataError, match="row 1 is not what was written there, nor are 1 others"):
        there.read(np.array([1, 2]))
    there.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_was_cut_is_told(way: str, tmp_path: Path) -> None:
    there = store("file", tmp_path, 100, 16, way)
    there.write(np.arange(100), np.ones((100, 16), np.float32))
    assert isinstance(there, FileRows)
    os.truncate(name_of(there), 50 * 512 + 100)
    with pytest.raises(DataError, match="table 'item': cannot read the rows from 0 on: the file ends before it"):
        there.read(np.arange(100))
    there.close()


@pytest.mark.parametrize("direct", [True, False])
def test_stores_share_a_folder_and_leave_nothing_there(direct: bool, tmp_path: Path) -> None:
    stores = [store("file", tmp_path / "disk", 10, 4, direct=direct) for _ in range(3)]
    for number, there in enumerate(stores):
        there.write(np.array([1]), np.full((1, 4), number, np.float32))
    assert [there.read(np.array([1]))[0, 0] for there in stores] == [0, 1, 2]
    assert list((tmp_path / "disk").iterdir()) == []  # nothing for a killed process to leave
    for there in stores:
        there.close()
        there.close()  # does no harm
    with pytest.raises(DataError, match="cannot read the rows from 1 on: Bad file descriptor"):
        stores[0].read(np.array([1]))


def test_a_store_that_nobody_holds_gives_its_file_back(tmp_path: Path) -> None:
    def files() -> int:
        opened = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        return sum(tmp_path in each.parents for each in opened)

    there = store("file", tmp_path, 10, 4)
    assert files() == 1
    del there
    gc.collect()
    assert files() == 0


def test_a_disk_that_is_too_small_is_refused_before_training(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 512) as folder:
        with pytest.raises(DataError, match=r"table 'item' need 5,120,000 bytes on disk.* are free\n.*packed: true"):
            store("file", folder, 10_000, 16)
        assert list(folder.iterdir()) == []
        store("packed", folder, 5_000, 16).close()
        each = [("item", 600, 16), ("user", 500, 16)]
        with pytest.raises(DataError, match=r"2 tables.* 'item' has the largest file \(307,200 .* need 563,200 bytes"):
            check_room(folder, each)
        check_room(folder, each, packed=True)
        check_room(folder, each[:1])
        assert list(folder.iterdir()) == []


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("somebody's")
    with pytest.raises(DataError, match="notes"):
        store("file", tmp_path / "notes", 10, 4)
    assert (tmp_path / "notes").read_text() == "somebody's"


def test_where_the_file_system_promises_no_room_the_file_has_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def __init__(self, *_: object, **__: object) -> None:
            self.fallocate64 = _refused

    monkeypatch.setattr("ziggurat.storage.file_rows.ctypes.CDLL", Refusing)
    there = store("file", tmp_path, 100, 16)
    there.write(np.array([99]), np.ones((1, 16), np.float32))
    assert there.read(np.array([99])).all()
    there.close()


@pytest.mark.parametrize("kind", FILES)
def test_a_file_system_that_cannot_pass_by_its_cache_does_with_it(kind: str, tmp_path: Path) -> None:
    there = store(kind, tmp_path, 100, 16, direct=False)
    assert isinstance(there, FileRows)
    assert not there.direct
    numbers = np.random.default_rng(0).normal(size=(100, 16)).astype(np.float32)
    there.write(np.arange(100), numbers)
    assert np.array_equal(there.read(np.arange(100)), numbers)
    there.close()


def test_many_rows_go_through_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ziggurat.storage.file_rows.CHUNK", 4096)
    there = FileRows(tmp_path, "t", 1000, 16, initial(16), transfers("threads"), packed=True)
    numbers = np.random.default_rng(0).normal(size=(1000, 16)).astype(np.float32)
    there.write(np.arange(1000), numbers)
    ids = np.arange(0, 1000, 3)
    assert np.array_equal(there.read(ids), numbers[ids])
    there.close()
