"""The cache of rows holds what is asked for most, is right whoever shares it, and never mixes two generations."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ziggurat.core.errors import ConfigError
from ziggurat.serving.tables.placement import Demand, Frequencies
from ziggurat.serving.tables.row_cache import ENTRY_BYTES, FIXED_BYTES, RowBytesCache, stride_of

Ints = npt.NDArray[np.int64]


def rows_of(ids: Ints, width: int, version: int) -> npt.NDArray[np.uint8]:
    """Returns rows that say which they are and of which version, in each of their parts."""
    words = np.repeat((ids * 1_000 + version)[:, None], width // 8, axis=1)
    return np.ascontiguousarray(words).view(np.uint8)


@pytest.mark.parametrize("width", [24, 304])
def test_what_is_asked_for_most_stays(width: int) -> None:
    random = np.random.default_rng(0)
    table_rows, kept = 20_000, 3_000
    cache = RowBytesCache(FIXED_BYTES + kept * (stride_of(width) + ENTRY_BYTES), width, table_rows)
    assert kept <= cache.capacity < 1.3 * kept
    ids = (table_rows * random.random(400_000) ** 4).astype(np.int64)
    for part in ids.reshape(-1, 500):
        out = np.zeros((len(part), width), np.uint8)
        missing = cache.read(part, out)
        there = np.setdiff1d(np.arange(len(part)), missing)
        assert (out[there] == rows_of(part[there], width, 0)).all()
        cache.put(part[missing], rows_of(part[missing], width, 0))
    often = np.arange(1_000)
    assert len(cache.read(often, np.zeros((1_000, width), np.uint8))) < 100
    once = np.arange(10_000, 20_000)
    cache.put(once, rows_of(once, width, 0))  # a scan, whose rows nobody asked for
    assert len(cache.read(often, np.zeros((1_000, width), np.uint8))) < 100


@pytest.mark.parametrize(("exponent", "share"), [(0.8, 0.05), (0.8, 0.3), (1.0, 0.02), (1.0, 0.2), (1.2, 0.1)])
def test_hits_are_as_planned(exponent: float, share: float) -> None:
    """The plan's hit rate is within 3 percentage points of that of drawn look-ups, other than those it knows."""
    table_rows, width = 60_000, 64
    random = np.random.default_rng(1)
    chances = 1 / np.arange(1, table_rows + 1) ** exponent
    cumulated = np.cumsum(chances / chances.sum())
    order = random.permutation(table_rows)

    def drawn(count: int) -> Ints:
        return order[np.minimum(np.searchsorted(cumulated, random.random(count)), table_rows - 1)]

    counts = np.bincount(drawn(300_000), minlength=table_rows)
    kept = int(share * table_rows)
    cache = RowBytesCache(FIXED_BYTES + kept * (width + ENTRY_BYTES), width, table_rows)
    cache.expect(counts)
    missed = total = 0
    for number in range(1_500):
        ids = drawn(1_000)
        missing = cache.read(ids, np.empty((1_000, width), np.uint8))
        cache.put(ids[missing], np.empty((len(missing), width), np.uint8))
        if number >= 500:
            missed, total = missed + len(missing), total + 1_000
    demand = Demand("item", table_rows, width, table_rows * width, 1.0, Frequencies.of(counts))
    planned = float(demand.hits(np.array([cache.capacity]))[0])
    assert planned == pytest.approx(1 - missed / total, abs=0.03)


def test_threads_never_see_half_a_row_or_one_of_another_version() -> None:
    """Readers of three versions and writers share a cache whose rows are replaced meanwhile."""
    width, table_rows = 256, 400
    cache = RowBytesCache(FIXED_BYTES + 120 * (width + ENTRY_BYTES), width, table_rows)
    wrong: list[str] = []
    hits = [0, 0, 0, 0]
    done = threading.Event()

    def use(version: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        while not done.is_set():
            ids = (table_rows * random.random(60) ** 2).astype(np.int64)
            out = np.zeros((60, width), np.uint8)
            missing = cache.read(ids, out, version)
            there = np.setdiff1d(np.arange(60), missing)
            hits[version] += len(there)
            changed = ids % 2 == 0  # only even rows are others in each version
            expected = rows_of(ids, width, 0)
            expected[changed] = rows_of(ids[changed], width, version)
            if not (out[there] == expected[there]).all():
                wrong.append(f"version {version}")
            cache.put(ids[missing], np.ascontiguousarray(expected[missing]), version)

    threads = [threading.Thread(target=use, args=(1, seed)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for version in (2, 3):
        before = hits[version - 1]
        deadline = time.monotonic() + 60
        while hits[version - 1] < before + 5_000:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        cache.advance(version, np.arange(0, table_rows, 2))
        assert cache.generation == version
        threads += [threading.Thread(target=use, args=(version, 10 * version + seed)) for seed in range(2)]
        for thread in threads[-2:]:
            thread.start()
    deadline = time.monotonic() + 60
    while hits[3] < 5_000:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    out = np.zeros((table_rows, width), np.uint8)
    assert len(cache.read(np.arange(table_rows), out, 2)) == table_rows  # nothing for those of a version before
    cache.advance(2, np.arange(table_rows))  # a process that is late takes nothing back
    assert cache.generation == 3


def put_forever(cache: RowBytesCache) -> None:
    ids = np.arange(64)
    while True:
        cache.put(ids, rows_of(ids, 4096, 0))


def test_processes_share_it_and_one_that_is_killed_breaks_nothing() -> None:
    cache = RowBytesCache(FIXED_BYTES + 64 * (4096 + ENTRY_BYTES), 4096, 64)
    ids = np.arange(64)
    for _ in range(3):
        process = get_context("spawn").Process(target=put_forever, args=(cache,))
        process.start()
        deadline = time.monotonic() + 120
        while len(cache.read(ids, np.zeros((64, 4096), np.uint8))) == 64:
            assert time.monotonic() < deadline
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)  # most likely while it writes a row
        process.join()
        out = np.zeros((64, 4096), np.uint8)
        missing = cache.read(ids, out)
        there = np.setdiff1d(ids, missing)
        assert (out[there] == rows_of(there, 4096, 0)).all()
        cache.put(ids, rows_of(ids, 4096, 0))
        cache.advance(cache.generation, None)  # takes each set, also that of the process that died
        assert len(cache.read(ids, out, cache.generation)) == 64


def test_a_set_whose_owner_died_is_taken_though_its_number_was_given_again() -> None:
    """A set of a process that had this one's number, and began at another time, must not be waited for."""
    cache = RowBytesCache(FIXED_BYTES + 64 * (64 + ENTRY_BYTES), 64, 64)
    ids = np.arange(64)
    sets = ctypes.cast(cache._memory.address + 4096, ctypes.POINTER(ctypes.c_uint32))
    cache.put(ids, rows_of(ids, 64, 0))
    born = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) % 1023 + 1
    sets[0], sets[1] = 1, os.getpid() | (born % 1023 + 1) << 22  # half written by another process
    ending = threading.Thread(target=cache.advance, args=(2,), daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive()
    assert sets[1] == 0
    cache.put(ids, rows_of(ids, 64, 0), 2)
    out = np.zeros((64, 64), np.uint8)
    there = np.setdiff1d(ids, cache.read(ids, out, 2))
    assert len(there) > 32
    assert (out[there] == rows_of(there, 64, 0)).all()


def test_a_table_of_too_many_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a cache can number 4,294,967,294"):
        RowBytesCache(1_000_000, 64, 1 << 40)
