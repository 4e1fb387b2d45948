"""Dirty rows of one shard, and snapshots that keep the rows as of their beginning during later updates."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ziggurat.embeddings.dirty_rows import DirtyRows, PendingSnapshot, _DeferredMarks


def tensors_of(rows: int) -> dict[str, Tensor]:
    """Returns weights, a state of the same shape and one with a number per row; all numbers are different."""
    numbers = torch.arange(rows * 7, dtype=torch.float32).view(rows, 7)
    return {"": numbers[:, :3].clone(), "exp_avg": numbers[:, 3:6].clone(), "sum": numbers[:, 6].clone()}


def copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def update(dirty: DirtyRows, tensors: dict[str, Tensor], ids: Tensor) -> None:
    dirty.touch(ids)
    for tensor in tensors.values():
        tensor[ids] += 0.5


def everything(pending: PendingSnapshot, most: int) -> Generator[tuple[Tensor, dict[str, Tensor]]]:
    while (taken := pending.take(most)) is not None:
        assert 0 < len(taken[0]) <= most
        assert taken[0].dtype == torch.int64
        yield taken


def check(taken: list[tuple[Tensor, dict[str, Tensor]]], rows: list[int], before: dict[str, Tensor]) -> None:
    """Asserts that every row was returned once, ascending, with its value in ``before``."""
    ids = torch.cat([torch.empty(0, dtype=torch.int64), *(ids for ids, _ in taken)])
    assert ids.tolist() == rows
    for name, tensor in before.items():
        numbers = torch.cat([tensor[:0], *(numbers[name] for _, numbers in taken)])
        assert torch.equal(numbers, tensor[ids]), name


def dirty_rows(dirty: DirtyRows, since: str = "last") -> list[int]:
    """Returns the dirty rows, without a change to them."""
    pending = dirty.begin_snapshot(since, "base")  # pyright: ignore[reportArgumentType]
    rows = [row for ids, _ in everything(pending, 10) for row in ids.tolist()]
    assert pending.rows == len(rows)
    dirty.abort_snapshot(pending)
    assert dirty.count_changed(since) == len(rows)  # pyright: ignore[reportArgumentType]
    return rows


@dataclass
class Model:
    """A reference model of dirty rows and snapshots, of plain sets and full copies."""

    tensors: dict[str, Tensor]
    last: set[int] = field(default_factory=set)
    base: set[int] = field(default_factory=set)
    pending: PendingSnapshot | None = None
    wanted: list[int] = field(default_factory=list)
    then: dict[str, Tensor] = field(default_factory=dict)
    cleared: tuple[set[int], set[int]] = (set(), set())
    taken: list[tuple[Tensor, dict[str, Tensor]]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return len(self.tensors[""])

    def begin(self, dirty: DirtyRows, rows: Any, clears: Any) -> None:
        self.wanted = sorted({"all": set(range(self.rows)), "last": self.last, "base": self.base}[rows])
        self.then, self.taken = copies(self.tensors), []
        self.cleared = (self.last, self.base if clears == "base" else set())
        self.last, self.base = set(), set() if clears == "base" else self.base
        self.pending = dirty.begin_snapshot(rows, clears)
        assert self.pending.rows == len(self.wanted)

    def take(self, most: int) -> None:
        assert self.pending is not None
        taken = self.pending.take(most)
        if taken is not None:
            self.taken.append(taken)
            return
        check(self.taken, self.wanted, self.then)
        self.pending = None

    def undo(self, dirty: DirtyRows) -> None:
        assert self.pending is not None
        dirty.abort_snapshot(self.pending)
        assert self.pending.take(5) is None
        self.last, self.base = self.last | self.cleared[0], self.base | self.cleared[1]
        self.pending = None


IDS = st.lists(st.integers(0, 59), max_size=25)
SINCE = st.sampled_from(["last", "base"])
STEPS = st.one_of(
    st.tuples(st.just("update"), IDS),
    st.tuples(st.just("update"), IDS),
    st.tuples(st.just("update_all")),
    st.tuples(st.just("mark"), IDS, SINCE),
    st.tuples(st.just("begin"), st.sampled_from(["last", "base", "all"]), SINCE),
    st.tuples(st.just("take"), st.integers(1, 70)),
    st.tuples(st.just("undo")),
)


@given(rows=st.sampled_from([0, 1, 7, 60]), trace=st.lists(STEPS, max_size=40))
@settings(max_examples=400, deadline=None)
def test_any_sequence_of_updates_and_snapshots(rows: int, trace: list[tuple[Any, ...]]) -> None:
    tensors = tensors_of(rows)
    dirty, model = DirtyRows(tensors), Model(tensors)
    for step, *arguments in trace:
        match step:
            case "update":
                ids = [row for row in arguments[0] if row < rows]
                update(dirty, tensors, torch.tensor(ids, dtype=torch.int64))
                model.last |= {*ids}
                model.base |= {*ids}
            case "update_all":
                dirty.touch_all()
                for tensor in tensors.values():
                    tensor += 0.5
                model.last, model.base = set(range(rows)), set(range(rows))
            case "mark":
                ids = [row for row in arguments[0] if row < rows]
                dirty.mark(torch.tensor(ids, dtype=torch.int64), arguments[1])
                model.base |= {*ids}
                model.last |= {*ids} if arguments[1] == "last" else set()
            case "begin" if model.pending is None:
                model.begin(dirty, *arguments)
            case "take" if model.pending is not None:
                model.take(*arguments)
            case "undo" if model.pending is not None:
                model.undo(dirty)
            case _:
                pass
        assert (dirty.count_changed("last"), dirty.count_changed("base")) == (len(model.last), len(model.base))
    while model.pending is not None:
        model.take(3)
    assert dirty_rows(dirty) == sorted(model.last)
    assert dirty_rows(dirty, "base") == sorted(model.base)


@pytest.mark.parametrize("share", [0.001, 0.3, 1.0])
@pytest.mark.parametrize("most", [97, 5_000, 60_000])
def test_many_updates_before_and_between_takes(share: float, most: int) -> None:
    """Uses more rows than one search window, and more updates than batches of saved rows."""
    draw = torch.Generator().manual_seed(0)
    tensors = tensors_of(50_000)
    dirty = DirtyRows(tensors)
    rows = torch.rand(50_000, generator=draw) < share
    dirty.mark(rows.nonzero().squeeze(1), "last")
    pending, then = dirty.begin_snapshot("last", "last"), copies(tensors)
    for _ in range(150):
        update(dirty, tensors, torch.randint(0, 50_000, (300,), generator=draw))
    taken: list[tuple[Tensor, dict[str, Tensor]]] = []
    for each in everything(pending, most):
        taken.append(each)
        update(dirty, tensors, torch.randint(0, 50_000, (300,), generator=draw))
    check(taken, rows.nonzero().squeeze(1).tolist(), then)


@pytest.fixture
def _short_turns() -> Generator[None]:
    """Makes threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_short_turns")
@pytest.mark.parametrize(("rows", "most"), [("all", 700), ("last", 700), ("last", 20_000)])
def test_a_thread_takes_while_rows_are_updated(rows: Any, most: int) -> None:
    draw = torch.Generator().manual_seed(0)
    tensors = tensors_of(20_000)
    dirty = DirtyRows(tensors)
    for turn in range(4):
        update(dirty, tensors, torch.randint(0, 20_000, (15_000,), generator=draw))
        wanted = list(range(20_000)) if rows == "all" else dirty_rows(dirty)
        pending, then = dirty.begin_snapshot(rows, "last"), copies(tensors)
        taken: list[tuple[Tensor, dict[str, Tensor]]] = []
        copier = threading.Thread(target=lambda into=taken, of=pending: into.extend(everything(of, most)))
        copier.start()
        updates = 0
        while copier.is_alive() or not updates:
            update(dirty, tensors, torch.randint(0, 20_000, (500,), generator=draw))
            updates += 1
        copier.join()
        check(taken, wanted, then)
        assert turn < 3 or dirty.count_changed("base") > 15_000


def test_columns_of_a_wider_tensor_are_copied() -> None:
    """FBGEMM's tensors are views of one storage; a copy holds nothing of other tensors."""
    storage = torch.arange(60.0)
    dirty = DirtyRows({"": storage[10:40].view(10, 3), "sum": storage[40:50]})
    pending = dirty.begin_snapshot("all", "base")
    dirty.touch(torch.tensor([3]))
    storage[19:22] = -1
    taken = pending.take(100)
    assert taken is not None
    assert torch.equal(taken[1][""], torch.arange(10.0, 40.0).view(10, 3))
    assert torch.equal(taken[1]["sum"], torch.arange(40.0, 50.0))
    taken[1][""].zero_()
    assert storage[10] == 10


def test_one_snapshot_at_a_time() -> None:
    dirty = DirtyRows(tensors_of(5))
    first = dirty.begin_snapshot("all", "base")
    with pytest.raises(AssertionError, match="a snapshot is pending"):
        dirty.begin_snapshot("last", "last")
    assert first.take(5) is not None
    with pytest.raises(AssertionError, match="a snapshot is pending"):
        dirty.begin_snapshot("last", "last")
    assert first.take(5) is None
    second = dirty.begin_snapshot("all", "base")
    second.drop()
    assert second.take(5) is None
    dirty.begin_snapshot("all", "base")


def test_a_snapshot_can_be_aborted() -> None:
    tensors = tensors_of(9)
    dirty = DirtyRows(tensors)
    update(dirty, tensors, torch.tensor([1, 2]))
    lost = dirty.begin_snapshot("all", "base")
    assert lost.take(9) is not None
    lost.drop()
    update(dirty, tensors, torch.tensor([4]))
    dirty.begin_snapshot("base", "last").drop()
    assert (dirty_rows(dirty), dirty_rows(dirty, "base")) == ([], [4])
    dirty.abort_snapshot(lost)
    assert (dirty_rows(dirty), dirty_rows(dirty, "base")) == ([1, 2], [1, 2, 4])


def test_marks_made_several_batches_at_once_are_those_of_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_DeferredMarks, "_MOST_IDS", 100)
    random = np.random.default_rng(0)
    deferred = _DeferredMarks()
    at_once = [DirtyRows(tensors_of(rows)) for rows in (40, 70)]
    deferred.tables += [DirtyRows(tensors_of(rows), settle=deferred.mark) for rows in (40, 70)]
    both = list(zip(at_once, deferred.tables, strict=True))
    pending: list[PendingSnapshot] = []
    for step in range(60):
        first, second = (torch.from_numpy(random.integers(0, rows, random.integers(0, 9))) for rows in (40, 70))
        for each, ids in zip(at_once, (first, second), strict=True):
            each.touch(ids)
        deferred.add(torch.cat([first, second]), [0, len(first), len(first) + len(second)])
        if step % 11 == 5:
            pending = [each.begin_snapshot("last", "last") for pair in both for each in pair]
        if step % 11 == 8:  # updates while a snapshot was pending are marked, and their rows were kept
            taken = [each.take(1000) for each in pending]
            for (rows, numbers), (other_rows, others) in zip(taken[::2], taken[1::2], strict=True):
                assert rows.equal(other_rows)
                assert all(numbers[name].equal(others[name]) for name in numbers)
            for each in pending:
                each.drop()
        if step % 7 == 0:
            for each, other in both:
                assert each.count_changed("last") == other.count_changed("last")
                assert each.count_changed("base") == other.count_changed("base")
                assert each._marks_R.equal(other._marks_R)


def test_tensors_of_unequal_rows_are_refused() -> None:
    with pytest.raises(AssertionError):
        DirtyRows({"": torch.zeros(4, 2), "steps": torch.zeros(())})
