"""Row stores, above all the log: rows read back as written, however often the log is cleaned; damage is reported."""

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
from tests.storage.storage_kit import (
    KINDS,
    METHODS,
    file_path,
    initial,
    make_store,
    make_transfers,
    overwrite,
    random_ids,
)
from ziggurat.core.errors import DataError
from ziggurat.storage.async_io import FileRanges, IOJob, Threads, TransferError
from ziggurat.storage.row_log import LogRows, LogShape, check_disk_space
from ziggurat.storage.row_store import MemoryRows, RowStore, Traffic, begin_reads, begin_writes


def make_log(folder: Path, rows: int, width: int, method: str = "threads") -> LogRows:
    log = make_store("log", folder, rows, width, method)
    assert isinstance(log, LogRows)
    return log


def _unsupported(*_: object) -> int:
    ctypes.set_errno(errno.EOPNOTSUPP)
    return -1


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(KINDS),
    method=st.sampled_from(METHODS),
    rows=st.integers(1, 300),
    width=st.sampled_from([1, 4, 17, 126, 200]),
    seed=st.integers(0, 2**20),
)
def test_rows_read_as_last_written(kind: str, method: str, rows: int, width: int, seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    expected, written = initial(width)(np.arange(rows)), np.zeros(rows, np.bool_)
    store = make_store(kind, tmp_path, rows, width, method)
    for _ in range(40):
        ids = random_ids(random, rows, 100)
        if random.random() < 0.3:
            store.forget(ids)
            assert not store.written(ids).any()
            written[ids] = False
        values = random.normal(size=(len(ids), width)).astype(np.float32)
        store.write(ids, values)
        expected[ids], written[ids] = values, True
        ids = random_ids(random, rows, 300)
        assert np.array_equal(store.read(ids), expected[ids])
        assert np.array_equal(store.written(ids), written[ids])
    store.close()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, 4000), share=st.floats(0.001, 1), seed=st.integers(0, 2**20))
def test_the_log_is_cleaned_repeatedly(rows: int, share: float, seed: int, tmp_path: Path) -> None:
    """Writes few rows at a time, which leaves blocks half empty, or all; eight times the capacity of the file."""
    random, store = np.random.default_rng(seed), make_log(tmp_path, rows, 17)
    kept, written = initial(17)(np.arange(rows)), 0
    while written < 8 * store.shape.segments * store.shape.blocks * store.shape.per_block and written < 60_000:
        ids = np.flatnonzero(random.random(rows) < share) if share * rows > 1 else random.integers(0, rows, 1)
        kept[ids] += 1
        store.write(ids, kept[ids])
        written += max(len(ids), store.shape.per_block)
    assert np.array_equal(store.read(np.arange(rows)), kept)
    store.close()


def test_few_rows_are_relocated_when_half_of_the_records_are_live(tmp_path: Path) -> None:
    random, store = np.random.default_rng(0), make_log(tmp_path, 20_000, 17)
    store.write(np.arange(20_000), np.zeros((20_000, 17), np.float32))
    store.traffic.rows_relocated = store.traffic.rows_written = 0
    for _ in range(200):
        ids = np.sort(random.choice(20_000, 500, replace=False))
        store.write(ids, np.ones((500, 17), np.float32))
    assert store.traffic.rows_relocated < store.traffic.rows_written  # uniform ids are the worst case
    store.close()


def test_transfers_of_several_stores_are_split_into_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ziggurat.storage.row_store.MAX_CHUNK_BYTES", 4 * 17 * 100)
    transfers, random = make_transfers("threads"), np.random.default_rng(0)
    stores: list[RowStore] = [
        LogRows(tmp_path, "a", 500, 17, initial(17), transfers),
        MemoryRows(300, 4, initial(4)),
        LogRows(tmp_path, "b", 400, 8, initial(8), transfers),
    ]
    ids = [random_ids(random, each.rows, each.rows) for each in stores]
    rows = [random.normal(size=(len(i), each.width)).astype(np.float32) for i, each in zip(ids, stores, strict=True)]
    begin_writes(list(zip(stores, ids, rows, strict=True))).wait()
    for found, wanted in zip(begin_reads(list(zip(stores, ids, strict=True))).wait(), rows, strict=True):
        assert np.array_equal(found, wanted)
    for each in stores:
        assert np.array_equal(each.read(np.arange(each.rows))[:, 0] % 100 == 0, ~each.written(np.arange(each.rows)))
        each.close()


def test_a_chunk_respects_the_memory_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that are read together are in different blocks, so each takes the memory of a block."""
    monkeypatch.setattr("ziggurat.storage.row_store.MAX_CHUNK_BYTES", 2**18)
    chunk_bytes: list[int] = []
    transfers, begin = make_transfers("threads"), Threads.begin

    def recording_begin(self: Threads, jobs: list[IOJob], *, writing: bool) -> Future[list[int]]:
        chunk_bytes.append(sum(job.memory_NB.nbytes for job in jobs))
        return begin(self, jobs, writing=writing)

    stores = [LogRows(tmp_path, str(n), 20_000, 65, initial(65), transfers) for n in range(3)]
    for store in stores:
        for first in range(7):
            store.write(np.arange(first, 20_000, 7), np.ones((len(range(first, 20_000, 7)), 65), np.float32))
    monkeypatch.setattr(Threads, "begin", recording_begin)
    found = begin_reads([(store, np.arange(0, 20_000, 3)) for store in stores]).wait()
    assert all(rows.min() == rows.max() == 1 for rows in found)
    assert max(chunk_bytes) <= 2**18
    for store in stores:
        store.close()


def test_a_store_is_unusable_after_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_log(tmp_path, 100, 16)
    store.write(np.arange(10), np.ones((10, 16), np.float32))

    def disk_full(self: Threads, writing: bool, ranges: FileRanges) -> None:
        raise TransferError(errno.ENOSPC, int(ranges.files_M[0]), int(ranges.offsets_M[0]))

    monkeypatch.setattr(Threads, "_transfer", disk_full)
    with pytest.raises(DataError, match=r"table 'item': cannot write its rows.* No space left.*\n.*free some space"):
        store.write(np.arange(5), np.zeros((5, 16), np.float32))
    monkeypatch.undo()
    for work in (lambda: store.read(np.arange(3)), lambda: store.write(np.arange(3), np.ones((3, 16), np.float32))):
        with pytest.raises(RuntimeError, match="an earlier write of them failed"):
            work()
    store.close()


def test_messages_number_rows_as_in_their_table(tmp_path: Path) -> None:
    store = LogRows(tmp_path, "item", 100, 16, initial(16), make_transfers("threads"), first_row=1250)
    store.write(np.arange(4), np.ones((4, 16), np.float32))
    overwrite(store, b"\x01", first_byte(store) + 3 * 72 + 20)
    with pytest.raises(DataError, match="row 1,253 is not what was written there"):
        store.read(np.arange(4))
    store.close()


def test_special_floats_are_preserved(tmp_path: Path) -> None:
    store = make_log(tmp_path, 10, 4)
    numbers = np.array([[np.nan, np.inf, -0.0, 1e-45]], np.float32)
    store.write(np.array([7]), numbers)
    assert store.read(np.array([7])).tobytes() == numbers.tobytes()
    store.close()


def test_layout_of_the_file() -> None:
    small = LogShape(1000, 16, 512)
    assert (small.record, small.block, small.per_block) == (18, 512, 7)
    assert (small.blocks, small.segments, small.file_bytes) == (9, 32, 32 * 9 * 512)  # 2 · 143 + 2 blocks
    assert (LogShape(1000, 65, 512).block, LogShape(1000, 65, 512).per_block) == (1024, 3)
    assert (LogShape(1000, 200, 512).block, LogShape(1000, 200, 512).per_block) == (1024, 1)
    assert (LogShape(1000, 65, 4096).block, LogShape(1000, 65, 4096).per_block) == (4096, 15)
    assert (LogShape(1, 1, 512).blocks, LogShape(1, 1, 512).segments) == (1, 4)
    assert LogShape(10**9, 65, 512).blocks == 1024  # 1 MiB


def test_traffic_is_counted(tmp_path: Path) -> None:
    store = make_log(tmp_path, 1000, 16)
    store.read(np.arange(0, 1000, 50))
    assert store.traffic == Traffic(rows_read=20, rows_initialised=20)
    ids = np.array([3, 4, 500])
    store.write(ids, np.zeros((3, 16), np.float32))
    assert (store.traffic.writes, store.traffic.written_bytes, store.traffic.rows_written) == (1, 512, 3)
    store.write(np.arange(100, 130), np.zeros((30, 16), np.float32))
    assert (store.traffic.writes, store.traffic.written_bytes) == (2, 6 * 512)  # one file range
    assert store.traffic.reads == 0
    store.read(np.array([3, 100, 101, 129]))
    assert (store.traffic.reads, store.traffic.read_bytes, store.traffic.rows_initialised) == (2, 3 * 512, 20)
    store.close()


def test_a_damaged_row_is_named_in_the_error(tmp_path: Path) -> None:
    store = make_log(tmp_path, 100, 16)
    ids = np.arange(0, 100, 10)
    store.write(ids, np.ones((10, 16), np.float32))
    overwrite(store, b"\x01", first_byte(store) + 3 * 72 + 20)
    with pytest.raises(DataError, match=r"table 'item': row 30 is not what was written there\n.*last checkpoint"):
        store.read(ids)
    assert np.array_equal(store.read(ids[ids != 30]), np.ones((9, 16)))
    store.close()


def first_byte(store: LogRows) -> int:
    """Returns the offset of the first written block."""
    return next(k for k, byte in enumerate(Path(file_path(store)).read_bytes()) if byte) // 512 * 512


def test_swapped_blocks_are_detected(tmp_path: Path) -> None:
    store = make_log(tmp_path, 10, 126)
    store.write(np.array([1, 2]), np.zeros((2, 126), np.float32))
    offset, data = first_byte(store), Path(file_path(store)).read_bytes()
    overwrite(store, data[offset + 512 : offset + 1024] + data[offset : offset + 512], offset)
    with pytest.raises(DataError, match="row 1 is not what was written there, nor are 1 others"):
        store.read(np.array([1, 2]))
    store.close()


@pytest.mark.parametrize("what", ["id", "number"])
def test_damage_is_detected_when_rows_are_relocated(what: str, tmp_path: Path) -> None:
    store = make_log(tmp_path, 40, 16)
    store.write(np.arange(40), np.ones((40, 16), np.float32))
    overwrite(store, b"\x27" if what == "id" else b"\x01", first_byte(store) + (4 if what == "id" else 20))
    with pytest.raises(DataError, match="row 0 is not what was written there"):
        for row in np.random.default_rng(0).integers(1, 40, 2000):
            store.write(np.array([row]), np.ones((1, 16), np.float32))
    store.close()


@pytest.mark.parametrize("method", METHODS)
def test_a_truncated_file_is_an_error(method: str, tmp_path: Path) -> None:
    store = make_log(tmp_path, 100, 16, method)
    store.write(np.arange(100), np.ones((100, 16), np.float32))
    os.truncate(file_path(store), first_byte(store) + 1000)
    with pytest.raises(DataError, match=r"table 'item': cannot read its rows, at byte [\d,]+ of their file: the file"):
        store.read(np.arange(100))
    store.close()


@pytest.mark.parametrize("direct", [True, False])
def test_stores_share_a_folder_and_leave_no_files(direct: bool, tmp_path: Path) -> None:
    stores = [make_store("log", tmp_path / "disk", 10, 4, direct=direct) for _ in range(3)]
    for number, store in enumerate(stores):
        store.write(np.array([1]), np.full((1, 4), number, np.float32))
    assert [store.read(np.array([1]))[0, 0] for store in stores] == [0, 1, 2]
    assert list((tmp_path / "disk").iterdir()) == []  # a killed process leaves nothing behind either
    for store in stores:
        store.close()
        store.close()  # closing twice is allowed
    with pytest.raises(DataError, match=r"cannot read its rows.*: Bad file descriptor"):
        stores[0].read(np.array([1]))


def test_a_garbage_collected_store_closes_its_file(tmp_path: Path) -> None:
    def open_files() -> int:
        opened = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        return sum(tmp_path in each.parents for each in opened)

    store = make_store("log", tmp_path, 10, 4)
    assert open_files() == 1
    del store
    gc.collect()
    assert open_files() == 0


def test_a_disk_that_is_too_small_is_rejected(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 512) as folder:
        with pytest.raises(DataError, match=r"table 'item' need 1,503,744 bytes on disk, and .* are free"):
            make_store("log", folder, 10_000, 16)
        assert list(folder.iterdir()) == []
        make_store("log", folder, 2_000, 16).close()
        tables = [("item", 2000, 16), ("user", 1900, 16)]
        with pytest.raises(DataError, match=r"2 tables.* 'item' has the largest file \(\d+,\d+ bytes\), need 5"):
            check_disk_space(folder, tables)
        check_disk_space(folder, tables[:1])
        assert list(folder.iterdir()) == []


def test_a_file_in_place_of_the_folder_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("somebody's")
    with pytest.raises(DataError, match="notes"):
        make_store("log", tmp_path / "notes", 10, 4)
    assert (tmp_path / "notes").read_text() == "somebody's"


def test_the_file_is_sparse_if_the_file_system_cannot_reserve_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithoutFallocate:
        def __init__(self, *_: object, **__: object) -> None:
            self.fallocate64 = _unsupported

    monkeypatch.setattr("ziggurat.storage.anonymous_files.ctypes.CDLL", WithoutFallocate)
    store = make_store("log", tmp_path, 100, 16)
    store.write(np.array([99]), np.ones((1, 16), np.float32))
    assert store.read(np.array([99])).all()
    store.close()


def test_a_log_works_through_the_page_cache(tmp_path: Path) -> None:
    store = make_store("log", tmp_path, 100, 16, direct=False)
    assert isinstance(store, LogRows)
    assert not store.direct
    numbers = np.random.default_rng(0).normal(size=(100, 16)).astype(np.float32)
    store.write(np.arange(100), numbers)
    assert np.array_equal(store.read(np.arange(100)), numbers)
    store.close()
