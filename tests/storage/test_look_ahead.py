"""What comes through the cache is, to the bit, what would come without one."""

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

from tests.storage.storage_kit import KINDS, Failing, initial, overwrite, store, transfers
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.storage.prefetcher import Prefetcher, PrefetchTicket
from ziggurat.storage.row_cache import CacheFull, RowCache
from ziggurat.storage.row_log import LogRows
from ziggurat.storage.row_store import Floats, Ints, MemoryRows, RowStore

WIDTHS = (3, 1)
"""Weights and a state."""
WIDTH = sum(WIDTHS)


def cache_of(stored: RowStore, slots: int, name: str = "item") -> tuple[RowCache, list[Floats]]:
    tensors = [np.full((slots, width) if width > 1 else slots, np.nan, np.float32) for width in WIDTHS]
    return RowCache(stored, tensors, name), tensors


def trace(seed: int, rows: int, batches: int, distance: int) -> list[Ints]:
    """Batches that repeat ids of up to ``distance`` batches before."""
    draw = np.random.default_rng(seed)
    found: list[Ints] = []
    for _ in range(batches):
        fresh = draw.integers(0, rows, int(draw.integers(0, 6)))
        again = [draw.choice(each, 2) for each in found[-distance:] if len(each)]
        found.append(draw.permutation(np.concatenate([fresh, *again[:3]])).astype(np.int64))
    return found


def updated(rows_UW: Floats, number: int, counts_U: Ints) -> Floats:
    """What a step makes of rows: not the same in another order of steps."""
    return (rows_UW * np.float32(0.75) + (number * counts_U)[:, None]).astype(np.float32)


def train(ahead: Prefetcher, tensors: list[Floats], batches: list[Ints], depth: int, evaluated: set[int]) -> None:
    """As a training does it: up to ``depth`` batches announced beyond the one at hand."""
    line: deque[tuple[int, PrefetchTicket]] = deque()
    coming = iter(enumerate(batches))
    while True:
        while len(line) <= depth and (item := next(coming, None)) is not None:
            number, ids = item
            line.append((number, ahead.announce([ids], updates=number not in evaluated)))
        if not line:
            return
        number, ticket = line.popleft()
        slots = ahead.slots(ticket)[0]
        assert len(slots) == len(ticket.ids[0])
        if number not in evaluated:
            found, counts = np.unique(slots, return_counts=True)
            for tensor in tensors:
                rows = tensor[found].reshape(len(found), tensor.size // len(tensor))
                tensor[found] = updated(rows, number, counts).reshape(tensor[found].shape)
        ahead.done(ticket)


def expected(rows: int, batches: list[Ints], evaluated: set[int]) -> Floats:
    found = initial(WIDTH)(np.arange(rows))
    for number, ids in enumerate(batches):
        if number not in evaluated:
            distinct, counts = np.unique(ids, return_counts=True)
            found[distinct] = updated(found[distinct], number, counts)
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**20),
    rows=st.integers(1, 60),
    room=st.integers(0, 30),
    distance=st.integers(1, 6),
    depth=st.integers(0, 6),
    evaluates=st.booleans(),
)
def test_training_through_a_tiny_cache_changes_nothing(
    kind: str, seed: int, rows: int, room: int, distance: int, depth: int, evaluates: bool, tmp_path: Path
) -> None:
    batches = trace(seed, rows, 40, distance)
    evaluated = {number for number in range(40) if evaluates and number % 5 == 3}
    slots = max(1, *(len(np.unique(ids)) for ids in batches)) + room
    stored = store(kind, tmp_path, rows, WIDTH)
    cache, tensors = cache_of(stored, slots)
    ahead = Prefetcher([cache])
    train(ahead, tensors, batches, depth, evaluated)
    every = np.arange(rows)
    assert np.array_equal(ahead.between(lambda: cache.rows(every)), expected(rows, batches, evaluated))
    met = np.unique(np.concatenate([ids for number, ids in enumerate(batches) if number not in evaluated]))
    assert np.array_equal(np.flatnonzero(ahead.between(lambda: cache.touched(every))), met)
    ahead.close()
    assert cache.hits.ids == sum(map(len, batches))
    assert cache.hits.missed <= cache.hits.ids - cache.hits.here
    stored.close()


def test_several_tables_go_together() -> None:
    stores = [MemoryRows(40, WIDTH, initial(WIDTH)) for _ in range(2)]
    caches = [cache_of(each, 12) for each in stores]
    ahead = Prefetcher([cache for cache, _ in caches])
    for number in range(30):
        ids = [np.array([number % 40, 3]), np.array([(7 * number) % 40])]
        ticket = ahead.announce(ids, updates=True)
        for (_, tensors), wanted, slots in zip(caches, ids, ahead.slots(ticket), strict=True):
            assert np.array_equal(tensors[0][slots][:, 0] % 100, np.zeros(len(wanted)))
            assert np.array_equal(tensors[0][slots][:, 0] // 100, wanted)
        ahead.done(ticket)
    ahead.close()


def test_tables_on_disk_go_together_and_wait_for_room_one_by_one(tmp_path: Path) -> None:
    """The second cache is crowded while the first is not: its rows come later, those of the first stay."""
    moved, tables = transfers("io_uring"), (300, 200)
    stores = [LogRows(tmp_path, f"t{n}", rows, WIDTH, initial(WIDTH), moved) for n, rows in enumerate(tables)]
    caches = [cache_of(stored, slots) for stored, slots in zip(stores, (60, 12), strict=True)]
    ahead = Prefetcher([cache for cache, _ in caches])
    draw, coming = np.random.default_rng(0), deque[tuple[int, list[Ints], PrefetchTicket]]()
    kept = [initial(WIDTH)(np.arange(rows)) for rows in tables]
    for number in range(80):
        ids = [np.sort(draw.choice(rows, count, replace=False)) for rows, count in zip(tables, (20, 8), strict=True)]
        coming.append((number, ids, ahead.announce(ids, updates=True)))
        if len(coming) < 3:
            continue
        number, ids, ticket = coming.popleft()
        for (_, tensors), mine, wanted, slots in zip(caches, kept, ids, ahead.slots(ticket), strict=True):
            for first, tensor in zip((0, WIDTH - 1), tensors, strict=True):
                flat = tensor.reshape(len(tensor), -1)
                assert np.array_equal(flat[slots], mine[wanted, first : first + flat.shape[1]])
                flat[slots] += 1
            mine[wanted] += 1
        ahead.done(ticket)
    for _, _, ticket in coming:
        ahead.done(ticket, dropped=True)
    for (cache, _), mine in zip(caches, kept, strict=True):
        found = ahead.between(lambda cache=cache: cache.rows(np.arange(cache.store.rows)))
        assert np.array_equal(found, mine)
        assert cache.hits.evicted > 100
    ahead.close()


def test_a_batch_that_was_trained_cannot_be_given_up_behind_that() -> None:
    cache, tensors = cache_of(MemoryRows(100, WIDTH, initial(WIDTH)), 4)
    ahead = Prefetcher([cache])
    ticket = ahead.announce([np.arange(4)], updates=True)
    tensors[0][ahead.slots(ticket)[0]] += 1
    ahead.done(ticket)
    ahead.done(ticket, dropped=True)
    other = ahead.announce([np.arange(10, 14)], updates=False)
    ahead.slots(other)
    ahead.done(other)
    assert np.array_equal(ahead.between(lambda: cache.rows(np.arange(4)))[:, 0], [1, 101, 201, 301])
    ahead.close()


def test_rows_that_coming_batches_need_stay_where_there_is_other_room() -> None:
    stored = MemoryRows(100, WIDTH, initial(WIDTH))
    cache, _ = cache_of(stored, 4)
    for batch, ids in enumerate(([0, 1], [2, 3]), 1):
        cache.bring(np.array(ids), batch, batch)
    cache.expect(np.array([0, 2]), 4)
    cache.bring(np.array([10, 11]), 3, 3)
    assert cache.here(np.array([0, 2])).all()
    assert not cache.here(np.array([1, 3])).any()
    cache.bring(np.array([12, 13, 14]), 4, 4)  # there is no other room
    assert cache.hits.evicted == 5


def test_a_row_of_a_batch_on_its_way_stays_though_a_later_one_expects_it() -> None:
    cache, _ = cache_of(MemoryRows(100, WIDTH, initial(WIDTH)), 3)
    cache.bring(np.array([0, 1]), 1, 1)
    cache.expect(np.array([0, 1]), 3)
    with pytest.raises(CacheFull) as crowded:
        cache.bring(np.array([5, 6]), 2, 1)
    assert crowded.value.missing == 1
    assert cache.here(np.array([0, 1])).all()


def test_what_is_needed_often_stays_longer_than_what_is_not() -> None:
    cache, _ = cache_of(MemoryRows(10_000, WIDTH, initial(WIDTH)), 100)
    often = np.arange(20)
    for batch in range(1, 400):
        cache.bring(np.concatenate([often[batch % 4 :: 4], 100 + batch * 20 + np.arange(20)]), batch, batch)
    before = cache.hits.missed
    cache.bring(often, 400, 400)
    assert cache.hits.missed - before <= 2


def test_what_was_used_long_ago_counts_less() -> None:
    cache, _ = cache_of(MemoryRows(10_000, WIDTH, initial(WIDTH)), 100)
    for batch in range(1, 3001):
        often = np.arange(20) + (20 if batch > 1000 else 0)
        cache.bring(np.concatenate([often, 100 + batch % 400 * 20 + np.arange(20)]), batch, batch)
    assert cache.here(np.arange(20, 40)).all()
    assert not cache.here(np.arange(20)).any()


def test_a_cache_that_is_too_small_for_a_batch_says_by_how_much() -> None:
    cache, _ = cache_of(MemoryRows(100, WIDTH, initial(WIDTH)), 5)
    ahead = Prefetcher([cache])
    ticket = ahead.announce([np.arange(8)], updates=True)
    with pytest.raises(
        ConfigError, match=r"table 'item': a batch looks up 8 of its rows, and memory has room for 5, 3 too"
    ):
        ahead.slots(ticket)
    ahead.done(ticket, dropped=True)
    smaller = ahead.announce([np.arange(4)], updates=False)  # others may come
    assert len(ahead.slots(smaller)[0]) == 4
    ahead.done(smaller)
    assert ahead.between(lambda: cache.touched(np.arange(100))).sum() == 0
    ahead.close()


def test_batches_on_their_way_that_do_not_fit_together_wait_for_each_other() -> None:
    cache, _ = cache_of(MemoryRows(100, WIDTH, initial(WIDTH)), 5)
    ahead = Prefetcher([cache])
    first = ahead.announce([np.arange(4)], updates=True)
    second = ahead.announce([np.arange(10, 14)], updates=True)
    ahead.slots(first)
    assert not second.ready.wait(0.2)
    ahead.done(first)
    ahead.slots(second)
    ahead.done(second)
    ahead.close()


def test_a_batch_that_is_given_up_holds_nobody_up() -> None:
    cache, _ = cache_of(MemoryRows(100, WIDTH, initial(WIDTH)), 5)
    ahead = Prefetcher([cache])
    first, second, third = (ahead.announce([np.arange(4) + 10 * k], updates=True) for k in range(3))
    ahead.slots(first)
    ahead.done(second)
    ahead.done(first)
    ahead.slots(third)
    assert not cache.here(np.array([12])).any()
    ahead.done(third)
    ahead.close()
    with pytest.raises(RuntimeError, match="closed"):
        ahead.between(lambda: 7)


def test_what_the_store_says_is_told(tmp_path: Path) -> None:
    stored = store("log", tmp_path, 100, WIDTH)
    assert isinstance(stored, LogRows)
    stored.write(np.arange(100), np.zeros((100, WIDTH), np.float32))
    overwrite(stored, bytes(12 * 512 - 1) + b"\x01", 0)
    cache, _ = cache_of(stored, 50)
    ahead = Prefetcher([cache])
    with pytest.raises(DataError, match="row 7 is not what was written there"):
        ahead.slots(ahead.announce([np.array([7])], updates=True))
    with pytest.raises(DataError, match="row 7 is not what"):
        ahead.slots(ahead.announce([np.array([8])], updates=True))
    ahead.close()
    stored.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("at", range(0, 24, 3))
def test_a_disk_that_fails_while_batches_are_on_their_way_is_told_as_it_failed(
    at: int, code: int, tmp_path: Path
) -> None:
    """Not as what came of it: rows that are read behind a write that failed are damaged."""
    moved = Failing(at, code)
    stores = [LogRows(tmp_path, f"t{n}", 60, WIDTH, initial(WIDTH), moved) for n in range(2)]
    caches = [cache_of(stored, 12)[0] for stored in stores]
    ahead, draw = Prefetcher(caches), np.random.default_rng(at)
    coming = deque[PrefetchTicket]()
    with pytest.raises(DataError) as caught:
        for _ in range(200):
            ids = [np.sort(draw.choice(60, 6, replace=False)) for _ in caches]
            coming.append(ahead.announce(ids, updates=True))
            if len(coming) > 2:
                ahead.slots(coming[0])
                ahead.done(coming.popleft())
    assert f"cannot {moved.failed} its rows" in str(caught.value)
    assert os.strerror(code) in str(caught.value)
    for ticket in coming:
        with pytest.raises(DataError):
            ahead.slots(ticket)
    with pytest.raises(DataError):
        ahead.between(lambda: 7)
    ahead.close()
    moved.close()


def test_a_slot_is_not_given_away_before_its_row_has_come(tmp_path: Path) -> None:
    """The batch that it comes for is given up meanwhile."""
    stored = store("slow log", tmp_path, 40, WIDTH)
    stored.write(np.arange(40), initial(WIDTH)(np.arange(40)))
    cache, tensors = cache_of(stored, 8)
    ahead = Prefetcher([cache])
    for turn in range(40):
        tickets = [ahead.announce([np.arange(6) + 6 * ((turn + k) % 5)], updates=True) for k in range(3)]
        ahead.done(tickets[0], dropped=True)
        for ticket in tickets[1:]:
            slots = ahead.slots(ticket)[0]
            assert np.array_equal(tensors[0][slots], initial(WIDTH)(ticket.ids[0])[:, :-1])
            ahead.done(ticket, dropped=True)
    ahead.close()
    stored.close()


def test_a_batch_waits_for_slots_of_one_that_is_given_up_while_its_rows_come(tmp_path: Path) -> None:
    stored = store("slow log", tmp_path, 40, WIDTH)
    stored.write(np.arange(40), initial(WIDTH)(np.arange(40)))
    cache, tensors = cache_of(stored, 8)
    ahead = Prefetcher([cache])
    for turn in range(20):
        given_up = ahead.announce([np.arange(8) + 8 * (turn % 2)], updates=True)
        time.sleep(0.002)
        ahead.done(given_up, dropped=True)
        ticket = ahead.announce([np.arange(8) + 16 + 8 * (turn % 2)], updates=True)
        slots = ahead.slots(ticket)[0]
        assert np.array_equal(tensors[0][slots], initial(WIDTH)(ticket.ids[0])[:, :-1])
        ahead.done(ticket)
    ahead.close()
    stored.close()


def test_rows_can_be_looked_at_and_replaced_between_batches() -> None:
    stored = MemoryRows(20, WIDTH, initial(WIDTH))
    cache, tensors = cache_of(stored, 4)
    ahead = Prefetcher([cache])
    ticket = ahead.announce([np.array([2, 3])], updates=True)
    slots = ahead.slots(ticket)[0]
    tensors[0][slots] += 1
    assert np.array_equal(cache.copied(np.array([2, 3]))[:, 0], [201, 301])
    ahead.done(ticket)
    new = np.full((3, WIDTH), 9, np.float32)
    ids = np.array([3, 4, 5])
    assert ahead.between(lambda: cache.touched(np.arange(6))).tolist() == [False, False, True, True, False, False]
    ahead.between(lambda: cache.put(ids, new))
    assert np.array_equal(ahead.between(lambda: cache.rows(np.array([2, 3, 4]))), [[201, 202, 203, 203], *new[:2]])
    assert ahead.between(lambda: cache.touched(np.arange(6))).tolist() == [False, False, True, True, True, True]
    with pytest.raises(ZeroDivisionError):
        ahead.between(lambda: 1 // 0)
    ahead.close()
    assert ahead.waited_s > 0
