"""The row cache and the prefetcher: training through them gives the same bits as training without a cache."""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage.storage_kit import KINDS, FailingThreads, initial, make_store, make_transfers, overwrite
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.storage.prefetcher import Prefetcher, PrefetchTicket
from ziggurat.storage.row_cache import CacheFull, RowCache
from ziggurat.storage.row_log import LogRows
from ziggurat.storage.row_store import Floats, Ints, MemoryRows, RowStore

WIDTHS = (3, 1)
"""Columns of the weights and of the optimizer state."""
WIDTH = sum(WIDTHS)


def make_cache(store: RowStore, slots: int, name: str = "item") -> tuple[RowCache, list[Floats]]:
    tensors = [np.full((slots, width) if width > 1 else slots, np.nan, np.float32) for width in WIDTHS]
    return RowCache(store, tensors, name), tensors


def random_batches(seed: int, rows: int, batches: int, distance: int) -> list[Ints]:
    """Returns batches of ids, some of which repeat ids of up to ``distance`` batches before."""
    random = np.random.default_rng(seed)
    found: list[Ints] = []
    for _ in range(batches):
        fresh = random.integers(0, rows, int(random.integers(0, 6)))
        again = [random.choice(each, 2) for each in found[-distance:] if len(each)]
        found.append(random.permutation(np.concatenate([fresh, *again[:3]])).astype(np.int64))
    return found


def updated(rows_UW: Floats, number: int, counts_U: Ints) -> Floats:
    """Returns rows as a training step would update them; the result depends on the order of steps."""
    return (rows_UW * np.float32(0.75) + (number * counts_U)[:, None]).astype(np.float32)


def train(prefetcher: Prefetcher, tensors: list[Floats], batches: list[Ints], depth: int, evaluated: set[int]) -> None:
    """Trains on batches, of which up to ``depth`` are announced ahead; those in ``evaluated`` are only looked up."""
    announced: deque[tuple[int, PrefetchTicket]] = deque()
    coming = iter(enumerate(batches))
    while True:
        while len(announced) <= depth and (item := next(coming, None)) is not None:
            number, ids = item
            announced.append((number, prefetcher.announce([ids], updates=number not in evaluated)))
        if not announced:
            return
        number, ticket = announced.popleft()
        slots = prefetcher.slots(ticket)[0]
        assert len(slots) == len(ticket.ids[0])
        if number not in evaluated:
            found, counts = np.unique(slots, return_counts=True)
            for tensor in tensors:
                rows = tensor[found].reshape(len(found), tensor.size // len(tensor))
                tensor[found] = updated(rows, number, counts).reshape(tensor[found].shape)
        prefetcher.done(ticket)


def rows_without_cache(rows: int, batches: list[Ints], evaluated: set[int]) -> Floats:
    """Returns all rows after training on the same batches without a cache."""
    expected = initial(WIDTH)(np.arange(rows))
    for number, ids in enumerate(batches):
        if number not in evaluated:
            distinct, counts = np.unique(ids, return_counts=True)
            expected[distinct] = updated(expected[distinct], number, counts)
    return expected


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**20),
    rows=st.integers(1, 60),
    spare_slots=st.integers(0, 30),
    distance=st.integers(1, 6),
    depth=st.integers(0, 6),
    evaluates=st.booleans(),
)
def test_training_through_a_small_cache_gives_the_same_rows(
    kind: str, seed: int, rows: int, spare_slots: int, distance: int, depth: int, evaluates: bool, tmp_path: Path
) -> None:
    batches = random_batches(seed, rows, 40, distance)
    evaluated = {number for number in range(40) if evaluates and number % 5 == 3}
    slots = max(1, *(len(np.unique(ids)) for ids in batches)) + spare_slots
    store = make_store(kind, tmp_path, rows, WIDTH)
    cache, tensors = make_cache(store, slots)
    prefetcher = Prefetcher([cache])
    train(prefetcher, tensors, batches, depth, evaluated)
    all_ids = np.arange(rows)
    assert np.array_equal(
        prefetcher.run_between(lambda: cache.read(all_ids)), rows_without_cache(rows, batches, evaluated)
    )
    trained = np.unique(np.concatenate([ids for number, ids in enumerate(batches) if number not in evaluated]))
    assert np.array_equal(np.flatnonzero(prefetcher.run_between(lambda: cache.touched(all_ids))), trained)
    prefetcher.close()
    assert cache.counts.lookups == sum(map(len, batches))
    assert cache.counts.missed <= cache.counts.lookups - cache.counts.hits
    store.close()


def test_rows_of_several_tables_are_fetched_together() -> None:
    stores = [MemoryRows(40, WIDTH, initial(WIDTH)) for _ in range(2)]
    caches = [make_cache(each, 12) for each in stores]
    prefetcher = Prefetcher([cache for cache, _ in caches])
    for number in range(30):
        ids = [np.array([number % 40, 3]), np.array([(7 * number) % 40])]
        ticket = prefetcher.announce(ids, updates=True)
        for (_, tensors), wanted, slots in zip(caches, ids, prefetcher.slots(ticket), strict=True):
            assert np.array_equal(tensors[0][slots][:, 0] % 100, np.zeros(len(wanted)))
            assert np.array_equal(tensors[0][slots][:, 0] // 100, wanted)
        prefetcher.done(ticket)
    prefetcher.close()


def test_a_batch_waits_only_for_the_cache_that_is_full(tmp_path: Path) -> None:
    """The second cache is full while the first is not: its rows arrive later, and those of the first stay cached."""
    transfers, tables = make_transfers("io_uring"), (300, 200)
    stores = [LogRows(tmp_path, f"t{n}", rows, WIDTH, initial(WIDTH), transfers) for n, rows in enumerate(tables)]
    caches = [make_cache(store, slots) for store, slots in zip(stores, (60, 12), strict=True)]
    prefetcher = Prefetcher([cache for cache, _ in caches])
    random, announced = np.random.default_rng(0), deque[tuple[int, list[Ints], PrefetchTicket]]()
    expected = [initial(WIDTH)(np.arange(rows)) for rows in tables]
    for number in range(80):
        ids = [np.sort(random.choice(rows, count, replace=False)) for rows, count in zip(tables, (20, 8), strict=True)]
        announced.append((number, ids, prefetcher.announce(ids, updates=True)))
        if len(announced) < 3:
            continue
        number, ids, ticket = announced.popleft()
        for (_, tensors), expected_RW, wanted, slots in zip(
            caches, expected, ids, prefetcher.slots(ticket), strict=True
        ):
            for first, tensor in zip((0, WIDTH - 1), tensors, strict=True):
                flat = tensor.reshape(len(tensor), -1)
                assert np.array_equal(flat[slots], expected_RW[wanted, first : first + flat.shape[1]])
                flat[slots] += 1
            expected_RW[wanted] += 1
        prefetcher.done(ticket)
    for _, _, ticket in announced:
        prefetcher.done(ticket, dropped=True)
    for (cache, _), expected_RW in zip(caches, expected, strict=True):
        found = prefetcher.run_between(lambda cache=cache: cache.read(np.arange(cache.store.rows)))
        assert np.array_equal(found, expected_RW)
        assert cache.counts.evicted > 100
    prefetcher.close()


def test_a_trained_batch_cannot_be_dropped_afterwards() -> None:
    cache, tensors = make_cache(MemoryRows(100, WIDTH, initial(WIDTH)), 4)
    prefetcher = Prefetcher([cache])
    ticket = prefetcher.announce([np.arange(4)], updates=True)
    tensors[0][prefetcher.slots(ticket)[0]] += 1
    prefetcher.done(ticket)
    prefetcher.done(ticket, dropped=True)
    other = prefetcher.announce([np.arange(10, 14)], updates=False)
    prefetcher.slots(other)
    prefetcher.done(other)
    assert np.array_equal(prefetcher.run_between(lambda: cache.read(np.arange(4)))[:, 0], [1, 101, 201, 301])
    prefetcher.close()


def test_rows_of_announced_batches_are_kept_if_there_are_other_slots() -> None:
    store = MemoryRows(100, WIDTH, initial(WIDTH))
    cache, _ = make_cache(store, 4)
    for batch, ids in enumerate(([0, 1], [2, 3]), 1):
        cache.fetch(np.array(ids), batch, batch)
    cache.expect(np.array([0, 2]), 4)
    cache.fetch(np.array([10, 11]), 3, 3)
    assert cache.cached(np.array([0, 2])).all()
    assert not cache.cached(np.array([1, 3])).any()
    cache.fetch(np.array([12, 13, 14]), 4, 4)  # there are no other slots
    assert cache.counts.evicted == 5


def test_a_row_of_a_batch_in_flight_is_not_evicted_although_a_later_batch_expects_it() -> None:
    cache, _ = make_cache(MemoryRows(100, WIDTH, initial(WIDTH)), 3)
    cache.fetch(np.array([0, 1]), 1, 1)
    cache.expect(np.array([0, 1]), 3)
    with pytest.raises(CacheFull) as caught:
        cache.fetch(np.array([5, 6]), 2, 1)
    assert caught.value.missing == 1
    assert cache.cached(np.array([0, 1])).all()


def test_frequently_used_rows_stay_longer() -> None:
    cache, _ = make_cache(MemoryRows(10_000, WIDTH, initial(WIDTH)), 100)
    often = np.arange(20)
    for batch in range(1, 400):
        cache.fetch(np.concatenate([often[batch % 4 :: 4], 100 + batch * 20 + np.arange(20)]), batch, batch)
    before = cache.counts.missed
    cache.fetch(often, 400, 400)
    assert cache.counts.missed - before <= 2


def test_old_uses_count_less() -> None:
    cache, _ = make_cache(MemoryRows(10_000, WIDTH, initial(WIDTH)), 100)
    for batch in range(1, 3001):
        often = np.arange(20) + (20 if batch > 1000 else 0)
        cache.fetch(np.concatenate([often, 100 + batch % 400 * 20 + np.arange(20)]), batch, batch)
    assert cache.cached(np.arange(20, 40)).all()
    assert not cache.cached(np.arange(20)).any()


def test_a_cache_that_is_too_small_for_a_batch_is_an_error() -> None:
    cache, _ = make_cache(MemoryRows(100, WIDTH, initial(WIDTH)), 5)
    prefetcher = Prefetcher([cache])
    ticket = prefetcher.announce([np.arange(8)], updates=True)
    with pytest.raises(
        ConfigError, match=r"table 'item': a batch looks up 8 of its rows, but memory has slots for 5, 3 too"
    ):
        prefetcher.slots(ticket)
    prefetcher.done(ticket, dropped=True)
    smaller = prefetcher.announce([np.arange(4)], updates=False)  # other batches may follow
    assert len(prefetcher.slots(smaller)[0]) == 4
    prefetcher.done(smaller)
    assert prefetcher.run_between(lambda: cache.touched(np.arange(100))).sum() == 0
    prefetcher.close()


def test_batches_that_do_not_fit_together_wait_for_each_other() -> None:
    cache, _ = make_cache(MemoryRows(100, WIDTH, initial(WIDTH)), 5)
    prefetcher = Prefetcher([cache])
    first = prefetcher.announce([np.arange(4)], updates=True)
    second = prefetcher.announce([np.arange(10, 14)], updates=True)
    prefetcher.slots(first)
    assert not second.ready.wait(0.2)
    prefetcher.done(first)
    prefetcher.slots(second)
    prefetcher.done(second)
    prefetcher.close()


def test_a_dropped_batch_does_not_block_others() -> None:
    cache, _ = make_cache(MemoryRows(100, WIDTH, initial(WIDTH)), 5)
    prefetcher = Prefetcher([cache])
    first, second, third = (prefetcher.announce([np.arange(4) + 10 * k], updates=True) for k in range(3))
    prefetcher.slots(first)
    prefetcher.done(second)
    prefetcher.done(first)
    prefetcher.slots(third)
    assert not cache.cached(np.array([12])).any()
    prefetcher.done(third)
    prefetcher.close()
    with pytest.raises(RuntimeError, match="closed"):
        prefetcher.run_between(lambda: 7)


def test_an_error_of_the_store_is_raised(tmp_path: Path) -> None:
    store = make_store("log", tmp_path, 100, WIDTH)
    assert isinstance(store, LogRows)
    store.write(np.arange(100), np.zeros((100, WIDTH), np.float32))
    overwrite(store, bytes(12 * 512 - 1) + b"\x01", 0)
    cache, _ = make_cache(store, 50)
    prefetcher = Prefetcher([cache])
    with pytest.raises(DataError, match="row 7 is not what was written there"):
        prefetcher.slots(prefetcher.announce([np.array([7])], updates=True))
    with pytest.raises(DataError, match="row 7 is not what"):
        prefetcher.slots(prefetcher.announce([np.array([8])], updates=True))
    prefetcher.close()
    store.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("at", range(0, 24, 3))
def test_a_disk_failure_is_reported_rather_than_its_consequences(at: int, code: int, tmp_path: Path) -> None:
    """Rows that are read after a failed write are damaged; the error must name the failed write instead."""
    transfers = FailingThreads(at, code)
    stores = [LogRows(tmp_path, f"t{n}", 60, WIDTH, initial(WIDTH), transfers) for n in range(2)]
    caches = [make_cache(store, 12)[0] for store in stores]
    prefetcher, random = Prefetcher(caches), np.random.default_rng(at)
    announced = deque[PrefetchTicket]()
    with pytest.raises(DataError) as caught:
        for _ in range(200):
            ids = [np.sort(random.choice(60, 6, replace=False)) for _ in caches]
            announced.append(prefetcher.announce(ids, updates=True))
            if len(announced) > 2:
                prefetcher.slots(announced[0])
                prefetcher.done(announced.popleft())
    assert f"cannot {transfers.failed} its rows" in str(caught.value)
    assert os.strerror(code) in str(caught.value)
    for ticket in announced:
        with pytest.raises(DataError):
            prefetcher.slots(ticket)
    with pytest.raises(DataError):
        prefetcher.run_between(lambda: 7)
    prefetcher.close()
    transfers.close()


def test_a_slot_is_not_reused_before_its_row_has_arrived(tmp_path: Path) -> None:
    """The batch that the row is read for is dropped meanwhile."""
    store = make_store("slow log", tmp_path, 40, WIDTH)
    store.write(np.arange(40), initial(WIDTH)(np.arange(40)))
    cache, tensors = make_cache(store, 8)
    prefetcher = Prefetcher([cache])
    for turn in range(40):
        tickets = [prefetcher.announce([np.arange(6) + 6 * ((turn + k) % 5)], updates=True) for k in range(3)]
        prefetcher.done(tickets[0], dropped=True)
        for ticket in tickets[1:]:
            slots = prefetcher.slots(ticket)[0]
            assert np.array_equal(tensors[0][slots], initial(WIDTH)(ticket.ids[0])[:, :-1])
            prefetcher.done(ticket, dropped=True)
    prefetcher.close()
    store.close()


def test_a_batch_waits_for_the_slots_of_one_that_is_dropped_while_its_rows_are_read(tmp_path: Path) -> None:
    store = make_store("slow log", tmp_path, 40, WIDTH)
    store.write(np.arange(40), initial(WIDTH)(np.arange(40)))
    cache, tensors = make_cache(store, 8)
    prefetcher = Prefetcher([cache])
    for turn in range(20):
        dropped = prefetcher.announce([np.arange(8) + 8 * (turn % 2)], updates=True)
        time.sleep(0.002)
        prefetcher.done(dropped, dropped=True)
        ticket = prefetcher.announce([np.arange(8) + 16 + 8 * (turn % 2)], updates=True)
        slots = prefetcher.slots(ticket)[0]
        assert np.array_equal(tensors[0][slots], initial(WIDTH)(ticket.ids[0])[:, :-1])
        prefetcher.done(ticket)
    prefetcher.close()
    store.close()


def test_rows_can_be_read_and_written_between_batches() -> None:
    store = MemoryRows(20, WIDTH, initial(WIDTH))
    cache, tensors = make_cache(store, 4)
    prefetcher = Prefetcher([cache])
    between = prefetcher.run_between
    ticket = prefetcher.announce([np.array([2, 3])], updates=True)
    slots = prefetcher.slots(ticket)[0]
    tensors[0][slots] += 1
    assert np.array_equal(cache.copy_cached(np.array([2, 3]))[:, 0], [201, 301])
    prefetcher.done(ticket)
    new = np.full((3, WIDTH), 9, np.float32)
    ids = np.array([3, 4, 5])
    assert between(lambda: cache.touched(np.arange(6))).tolist() == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    between(lambda: cache.write(ids, new))
    assert np.array_equal(between(lambda: cache.read(np.array([2, 3, 4]))), [[201, 202, 203, 203], *new[:2]])
    assert between(lambda: cache.touched(np.arange(6))).tolist() == [
        False,
        False,
        True,
        True,
        True,
        True,
    ]
    with pytest.raises(ZeroDivisionError):
        between(lambda: 1 // 0)
    prefetcher.close()
    assert prefetcher.waited_s > 0
