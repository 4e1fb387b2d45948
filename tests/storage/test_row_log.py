"""Rows in a log: what is read is what was written, however often the log went round, and what is not is told."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.small_disk import small_disk
from tests.storage.storage_kit import KINDS, WAYS, distinct, initial, name_of, overwrite, store, transfers
from ziggurat.core.errors import DataError
from ziggurat.storage.async_io import FileRanges, IOJob, Threads, TransferError
from ziggurat.storage.row_log import LogRows, LogShape, check_room
from ziggurat.storage.row_store import MemoryRows, RowStore, Traffic, begin_reading, begin_writing


def log(folder: Path, rows: int, width: int, way: str = "threads") -> LogRows:
    found = store("log", folder, rows, width, way)
    assert isinstance(found, LogRows)
    return found


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
    for _ in range(40):
        ids = distinct(draw, rows, 100)
        if draw.random() < 0.3:
            there.forget(ids)
            assert not there.written(ids).any()
            ever[ids] = False
        numbers = draw.normal(size=(len(ids), width)).astype(np.float32)
        there.write(ids, numbers)
        kept[ids], ever[ids] = numbers, True
        ids = distinct(draw, rows, 300)
        assert np.array_equal(there.read(ids), kept[ids])
        assert np.array_equal(there.written(ids), ever[ids])
    there.close()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, 4000), share=st.floats(0.001, 1), seed=st.integers(0, 2**20))
def test_the_log_goes_round(rows: int, share: float, seed: int, tmp_path: Path) -> None:
    """Calls of few rows, which leave blocks half empty, and of all; in four times as much as the file holds."""
    draw, there = np.random.default_rng(seed), log(tmp_path, rows, 17)
    kept, written = initial(17)(np.arange(rows)), 0
    while written < 8 * there.shape.segments * there.shape.blocks * there.shape.per_block and written < 60_000:
        ids = np.flatnonzero(draw.random(rows) < share) if share * rows > 1 else draw.integers(0, rows, 1)
        kept[ids] += 1
        there.write(ids, kept[ids])
        written += max(len(ids), there.shape.per_block)
    assert np.array_equal(there.read(np.arange(rows)), kept)
    there.close()


def test_few_rows_are_moved_where_half_of_the_log_counts(tmp_path: Path) -> None:
    draw, there = np.random.default_rng(0), log(tmp_path, 20_000, 17)
    there.write(np.arange(20_000), np.zeros((20_000, 17), np.float32))
    there.traffic.rows_moved = there.traffic.rows_written = 0
    for _ in range(200):
        ids = np.sort(draw.choice(20_000, 500, replace=False))
        there.write(ids, np.ones((500, 17), np.float32))
    assert there.traffic.rows_moved < there.traffic.rows_written  # of uniform ids, the worst
    there.close()


def test_stores_move_together_and_little_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ziggurat.storage.row_store.TOGETHER", 4 * 17 * 100)
    moved, draw = transfers("threads"), np.random.default_rng(0)
    stores: list[RowStore] = [
        LogRows(tmp_path, "a", 500, 17, initial(17), moved),
        MemoryRows(300, 4, initial(4)),
        LogRows(tmp_path, "b", 400, 8, initial(8), moved),
    ]
    ids = [distinct(draw, each.rows, each.rows) for each in stores]
    rows = [draw.normal(size=(len(i), each.width)).astype(np.float32) for i, each in zip(ids, stores, strict=True)]
    begin_writing(list(zip(stores, ids, rows, strict=True))).wait()
    for found, wanted in zip(begin_reading(list(zip(stores, ids, strict=True))).wait(), rows, strict=True):
        assert np.array_equal(found, wanted)
    for each in stores:
        assert np.array_equal(each.read(np.arange(each.rows))[:, 0] % 100 == 0, ~each.written(np.arange(each.rows)))
        each.close()


def test_a_turn_takes_no_more_memory_than_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one call come back from blocks that lie apart: a block each."""
    monkeypatch.setattr("ziggurat.storage.row_store.TOGETHER", 2**18)
    asked: list[int] = []
    moved, begin = transfers("threads"), Threads.begin

    def noted(self: Threads, jobs: list[IOJob], *, writing: bool) -> Future[list[int]]:
        asked.append(sum(job.memory_NB.nbytes for job in jobs))
        return begin(self, jobs, writing=writing)

    stores = [LogRows(tmp_path, str(n), 20_000, 65, initial(65), moved) for n in range(3)]
    for there in stores:
        for first in range(7):
            there.write(np.arange(first, 20_000, 7), np.ones((len(range(first, 20_000, 7)), 65), np.float32))
    monkeypatch.setattr(Threads, "begin", noted)
    found = begin_reading([(there, np.arange(0, 20_000, 3)) for there in stores]).wait()
    assert all(rows.min() == rows.max() == 1 for rows in found)
    assert max(asked) <= 2**18
    for there in stores:
        there.close()


def test_behind_a_write_that_failed_no_row_is_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = log(tmp_path, 100, 16)
    there.write(np.arange(10), np.ones((10, 16), np.float32))

    def full(self: Threads, writing: bool, every: FileRanges) -> None:
        raise TransferError(errno.ENOSPC, int(every.files_M[0]), int(every.offsets_M[0]))

    monkeypatch.setattr(Threads, "_stretches", full)
    with pytest.raises(DataError, match=r"table 'item': cannot write its rows.* No space left.*\n.*free some space"):
        there.write(np.arange(5), np.zeros((5, 16), np.float32))
    monkeypatch.undo()
    for work in (lambda: there.read(np.arange(3)), lambda: there.write(np.arange(3), np.ones((3, 16), np.float32))):
        with pytest.raises(RuntimeError, match="a write of these rows failed before"):
            work()
    there.close()


def test_rows_are_named_as_in_their_table(tmp_path: Path) -> None:
    there = LogRows(tmp_path, "item", 100, 16, initial(16), transfers("threads"), first=1250)
    there.write(np.arange(4), np.ones((4, 16), np.float32))
    overwrite(there, b"\x01", first_byte(there) + 3 * 72 + 20)
    with pytest.raises(DataError, match="row 1,253 is not what was written there"):
        there.read(np.arange(4))
    there.close()


def test_odd_numbers_survive(tmp_path: Path) -> None:
    there = log(tmp_path, 10, 4)
    numbers = np.array([[np.nan, np.inf, -0.0, 1e-45]], np.float32)
    there.write(np.array([7]), numbers)
    assert there.read(np.array([7])).tobytes() == numbers.tobytes()
    there.close()


def test_where_records_lie() -> None:
    small = LogShape(1000, 16, 512)
    assert (small.record, small.block, small.per_block) == (18, 512, 7)
    assert (small.blocks, small.segments, small.file_bytes) == (9, 32, 32 * 9 * 512)  # 2 · 143 + 2 blocks
    assert (LogShape(1000, 65, 512).block, LogShape(1000, 65, 512).per_block) == (1024, 3)
    assert (LogShape(1000, 200, 512).block, LogShape(1000, 200, 512).per_block) == (1024, 1)
    assert (LogShape(1000, 65, 4096).block, LogShape(1000, 65, 4096).per_block) == (4096, 15)
    assert (LogShape(1, 1, 512).blocks, LogShape(1, 1, 512).segments) == (1, 4)
    assert LogShape(10**9, 65, 512).blocks == 1024  # a mebibyte


def test_traffic_is_counted(tmp_path: Path) -> None:
    there = log(tmp_path, 1000, 16)
    there.read(np.arange(0, 1000, 50))
    assert there.traffic == Traffic(rows_read=20, rows_made=20)
    ids = np.array([3, 4, 500])
    there.write(ids, np.zeros((3, 16), np.float32))
    assert (there.traffic.writes, there.traffic.written_bytes, there.traffic.rows_written) == (1, 512, 3)
    there.write(np.arange(100, 130), np.zeros((30, 16), np.float32))
    assert (there.traffic.writes, there.traffic.written_bytes) == (2, 6 * 512)  # one stretch
    assert there.traffic.reads == 0
    there.read(np.array([3, 100, 101, 129]))
    assert (there.traffic.reads, there.traffic.read_bytes, there.traffic.rows_made) == (2, 3 * 512, 20)
    there.close()


def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    there = log(tmp_path, 100, 16)
    ids = np.arange(0, 100, 10)
    there.write(ids, np.ones((10, 16), np.float32))
    overwrite(there, b"\x01", first_byte(there) + 3 * 72 + 20)
    with pytest.raises(DataError, match=r"table 'item': row 30 is not what was written there\n.*last checkpoint"):
        there.read(ids)
    assert np.array_equal(there.read(ids[ids != 30]), np.ones((9, 16)))
    there.close()


def first_byte(there: LogRows) -> int:
    """Of what was written first."""
    return next(k for k, byte in enumerate(Path(name_of(there)).read_bytes()) if byte) // 512 * 512


def test_rows_that_changed_places_are_noticed(tmp_path: Path) -> None:
    there = log(tmp_path, 10, 126)
    there.write(np.array([1, 2]), np.zeros((2, 126), np.float32))
    at, data = first_byte(there), Path(name_of(there)).read_bytes()
    overwrite(there, data[at + 512 : at + 1024] + data[at : at + 512], at)
    with pytest.raises(DataError, match="row 1 is not what was written there, nor are 1 others"):
        there.read(np.array([1, 2]))
    there.close()


@pytest.mark.parametrize("what", ["id", "number"])
def test_damage_is_noticed_where_rows_are_moved(what: str, tmp_path: Path) -> None:
    there = log(tmp_path, 40, 16)
    there.write(np.arange(40), np.ones((40, 16), np.float32))
    overwrite(there, b"\x27" if what == "id" else b"\x01", first_byte(there) + (4 if what == "id" else 20))
    with pytest.raises(DataError, match="row 0 is not what was written there"):
        for row in np.random.default_rng(0).integers(1, 40, 2000):
            there.write(np.array([row]), np.ones((1, 16), np.float32))
    there.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_was_cut_is_told(way: str, tmp_path: Path) -> None:
    there = log(tmp_path, 100, 16, way)
    there.write(np.arange(100), np.ones((100, 16), np.float32))
    os.truncate(name_of(there), first_byte(there) + 1000)
    with pytest.raises(DataError, match=r"table 'item': cannot read its rows, at byte [\d,]+ of their file: the file"):
        there.read(np.arange(100))
    there.close()


@pytest.mark.parametrize("direct", [True, False])
def test_stores_share_a_folder_and_leave_nothing_there(direct: bool, tmp_path: Path) -> None:
    stores = [store("log", tmp_path / "disk", 10, 4, direct=direct) for _ in range(3)]
    for number, there in enumerate(stores):
        there.write(np.array([1]), np.full((1, 4), number, np.float32))
    assert [there.read(np.array([1]))[0, 0] for there in stores] == [0, 1, 2]
    assert list((tmp_path / "disk").iterdir()) == []  # nothing for a killed process to leave
    for there in stores:
        there.close()
        there.close()  # does no harm
    with pytest.raises(DataError, match=r"cannot read its rows.*: Bad file descriptor"):
        stores[0].read(np.array([1]))


def test_a_store_that_nobody_holds_gives_its_file_back(tmp_path: Path) -> None:
    def files() -> int:
        opened = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        return sum(tmp_path in each.parents for each in opened)

    there = store("log", tmp_path, 10, 4)
    assert files() == 1
    del there
    gc.collect()
    assert files() == 0


def test_a_disk_that_is_too_small_is_refused_before_training(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 512) as folder:
        with pytest.raises(DataError, match=r"table 'item' need 1,503,744 bytes on disk, and .* are free"):
            store("log", folder, 10_000, 16)
        assert list(folder.iterdir()) == []
        store("log", folder, 2_000, 16).close()
        each = [("item", 2000, 16), ("user", 1900, 16)]
        with pytest.raises(DataError, match=r"2 tables.* 'item' has the largest file \(\d+,\d+ bytes\), need 5"):
            check_room(folder, each)
        check_room(folder, each[:1])
        assert list(folder.iterdir()) == []


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("somebody's")
    with pytest.raises(DataError, match="notes"):
        store("log", tmp_path / "notes", 10, 4)
    assert (tmp_path / "notes").read_text() == "somebody's"


def test_where_the_file_system_promises_no_room_the_file_has_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def __init__(self, *_: object, **__: object) -> None:
            self.fallocate64 = _refused

    monkeypatch.setattr("ziggurat.storage.anonymous_files.ctypes.CDLL", Refusing)
    there = store("log", tmp_path, 100, 16)
    there.write(np.array([99]), np.ones((1, 16), np.float32))
    assert there.read(np.array([99])).all()
    there.close()


def test_a_file_system_that_cannot_pass_by_its_cache_does_with_it(tmp_path: Path) -> None:
    there = store("log", tmp_path, 100, 16, direct=False)
    assert isinstance(there, LogRows)
    assert not there.direct
    numbers = np.random.default_rng(0).normal(size=(100, 16)).astype(np.float32)
    there.write(np.arange(100), numbers)
    assert np.array_equal(there.read(np.arange(100)), numbers)
    there.close()
