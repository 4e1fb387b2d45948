"""Requests that arrive while others are predicted become one batch; what has no place or no time is refused at once."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from tests.serving.http_kit import Exported, exported
from ziggurat.serving.http.batching import batcher as batching
from ziggurat.serving.http.batching.batcher import Answer, Batcher, BatchFigures
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.refusals import HttpRefused
from ziggurat.serving.http.served_model import ServedModel

LIMITS = ServingLimits()


@pytest.fixture(scope="module")
def export() -> Exported:
    return exported()


class Held:
    """A batcher that predicts a batch only when it is let, and notes its figures when ``may_note`` is set."""

    def __init__(self, export: Exported, limits: ServingLimits = LIMITS) -> None:
        self.model = ServedModel.open(export.folder)
        self.batches: list[int] = []
        self.began, self.go = threading.Semaphore(0), threading.Semaphore(0)
        scorer: Any = self.model.scorer
        predict = scorer.columns_of_requests

        def held(*arguments: Any) -> Any:
            self.began.release()
            assert self.go.acquire(timeout=60)
            return predict(*arguments)

        scorer.columns_of_requests = held
        self.may_note = threading.Event()
        self.may_note.set()
        self.batcher = Batcher(self.model, limits, self._observe)

    def _observe(self, figures: BatchFigures) -> None:
        self.batches.append(figures.rows)
        assert self.may_note.wait(60)

    def ask(
        self, rows: list[dict[str, Any]], seconds: float = 60.0, gone: asyncio.Future[None] | None = None
    ) -> asyncio.Task[Answer]:
        """Starts a request."""

        async def run() -> Answer:
            deadline = time.monotonic() + seconds
            return await self.batcher.predict(lambda model: model.predict_parts(rows), len(rows), deadline, gone=gone)

        return asyncio.get_running_loop().create_task(run())

    async def busy(self) -> None:
        """Waits until a batch has begun."""
        while not self.began.acquire(blocking=False):
            await asyncio.sleep(0.001)

    async def took(self, rows: list[dict[str, Any]], seconds: float) -> None:
        """Predicts a request for so long that a row is known to take its part of it."""
        asked = self.ask(rows)
        await self.busy()
        await asyncio.sleep(seconds)
        self.let()
        await asked

    def let(self, batches: int = 1) -> None:
        self.go.release(batches)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))  # pyright: ignore[reportArgumentType]


async def queued(held: Held, rows: int) -> None:
    while held.batcher.queued_rows != rows:
        await asyncio.sleep(0.001)


def test_requests_that_wait_become_batches_and_each_gets_its_own_rows(export: Exported) -> None:
    async def test() -> None:
        held = Held(export, ServingLimits(batch_rows=10))
        first = held.ask(export.rows[:1])
        await held.busy()
        others = [held.ask(export.rows[1 + 4 * k : 5 + 4 * k]) for k in range(4)]
        large = held.ask(export.rows[20:40])
        await queued(held, 36)
        held.let(10)
        found = await asyncio.gather(first, *others, large)
        held.batcher.close()
        assert held.batches == [1, 8, 8, 20]
        assert [each.batch_rows for each in found] == [1, 8, 8, 8, 8, 20]
        expected = export.predictions(export.rows[:40])[:, 0]
        spans = [(0, 1), *((1 + 4 * k, 5 + 4 * k) for k in range(4)), (20, 40)]
        for (start, stop), each in zip(spans, found, strict=True):
            np.testing.assert_allclose(each.outputs["click"], expected[start:stop], atol=1e-6)

    run(test)


def test_a_full_queue_refuses_at_once_and_serves_what_was_admitted(export: Exported) -> None:
    async def test() -> None:
        held = Held(export, ServingLimits(queue_rows=8))
        admitted = [held.ask(export.rows[:1])]
        await held.busy()
        admitted += [held.ask(export.rows[:4]), held.ask(export.rows[:4])]
        await queued(held, 8)
        with pytest.raises(HttpRefused, match="8 rows wait already; 8 may") as refused:
            await held.ask(export.rows[:1])
        assert (refused.value.status, refused.value.retry_after_s) == (503, 1)
        held.let(3)
        assert [len((await each).outputs["click"]) for each in admitted] == [1, 4, 4]
        held.batcher.close()

    run(test)


def test_a_request_whose_deadline_passes_while_it_waits_is_not_predicted(export: Exported) -> None:
    async def test() -> None:
        held = Held(export)
        first = held.ask(export.rows[:1])
        await held.busy()
        late, other = held.ask(export.rows[:2], 0.05), held.ask(export.rows[:3])
        await queued(held, 5)
        await asyncio.sleep(0.1)
        held.let(2)
        with pytest.raises(HttpRefused, match="passed while it waited"):
            await late
        await asyncio.gather(first, other)
        held.batcher.close()
        assert held.batches == [1, 3]

    run(test)


def test_a_request_that_would_wait_longer_than_it_may_is_refused_at_once(export: Exported) -> None:
    async def test() -> None:
        held = Held(export)
        await held.took(export.rows[:1], 0.2)
        second = held.ask(export.rows[:50])
        await held.busy()
        with pytest.raises(HttpRefused, match="the rows that wait take another") as refused:
            await held.ask(export.rows[:1], 5.0)
        assert refused.value.retry_after_s is not None
        assert refused.value.retry_after_s >= 10
        held.let()
        await second
        held.batcher.close()

    run(test)


def test_a_request_that_would_be_late_as_others_were_is_refused_unless_it_need_not_wait(export: Exported) -> None:
    async def test() -> None:
        held = Held(export)
        for _ in range(50):
            held.batcher.admission.late.add(10.0)
        first = held.ask(export.rows[:1], 5.0)
        await held.busy()
        held.let()
        await first
        second = held.ask(export.rows[:1], 60.0)
        await held.busy()
        with pytest.raises(HttpRefused, match="would be answered after"):
            await held.ask(export.rows[:1], 5.0)
        third = held.ask(export.rows[:1], 60.0)
        held.let(2)
        await asyncio.gather(second, third)
        held.batcher.close()

    run(test)


def test_many_rows_are_not_taken_for_as_many_requests_of_one(export: Exported) -> None:
    """A row alone takes .2 s here, so 40 rows would take 8 s if each did."""

    async def test() -> None:
        held = Held(export)
        await held.took(export.rows[:1], 0.2)
        second = held.ask(export.rows[:1])
        await held.busy()
        third = held.ask(export.rows[:40], 5.0)
        await queued(held, 40)
        held.let(2)
        assert len((await third).outputs["click"]) == 40
        await second
        held.batcher.close()

    run(test)


def test_a_request_does_not_wait_for_what_is_only_observed(export: Exported) -> None:
    """The first batch took a second and is answered, but its figures are not noted yet."""

    async def test() -> None:
        held = Held(export)
        held.may_note.clear()
        first = held.ask(export.rows[:100])
        await held.busy()
        await asyncio.sleep(1.0)
        held.let(2)
        await first
        second = held.ask(export.rows[:1], 0.9)
        await queued(held, 1)
        held.may_note.set()
        await second
        held.batcher.close()

    run(test)


def test_an_overloaded_batcher_says_so_and_admits_who_need_not_queue(export: Exported) -> None:
    async def test() -> None:
        held = Held(export, ServingLimits(overload_wait_s=0.05))
        await held.took(export.rows[:1], 0.2)
        second = held.ask(export.rows[:1])
        await held.busy()
        third = held.ask(export.rows[:1])
        await queued(held, 1)
        await asyncio.sleep(0.7)
        with pytest.raises(HttpRefused, match="requests come faster than they are answered") as refused:
            await held.ask(export.rows[:1])
        assert (refused.value.status, refused.value.code) == (503, "overloaded")
        held.let()
        await second
        await held.busy()
        fourth = held.ask(export.rows[:1])
        held.let(2)
        await asyncio.gather(third, fourth)
        held.batcher.close()

    run(test)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux alone")
def test_the_event_loop_goes_before_the_thread_that_predicts(export: Exported) -> None:
    before = {thread.native_id for thread in threading.enumerate()}
    batcher = Batcher(export.model, LIMITS)
    (own,) = {thread.native_id for thread in threading.enumerate()} - before
    assert own is not None
    answer = asyncio.run(batcher.predict(lambda model: model.predict_parts(export.rows[:1]), 1, time.monotonic() + 60))
    assert len(answer.outputs["click"]) == 1
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, own) == min(19, mine + 5)
    batcher.close()


def test_a_request_at_fault_and_one_that_is_gone_do_not_harm_the_others_of_their_batch(export: Exported) -> None:
    async def test() -> None:
        held = Held(export)
        first = held.ask(export.rows[:1])
        await held.busy()
        bad = held.ask([{**export.rows[0], "item": "x"}])
        gone, other = held.ask(export.rows[:7]), held.ask(export.rows[:3])
        await queued(held, 11)
        gone.cancel()
        await asyncio.sleep(0)
        held.let(2)
        with pytest.raises(HttpRefused, match="column 'item'"):
            await bad
        assert len((await other).outputs["click"]) == 3
        await first
        held.batcher.close()
        assert held.batches == [1, 3]

    run(test)


def test_an_error_that_nobody_expects_fails_only_the_request_that_causes_it(
    export: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = batching.encode_batch

    def encoded(model: ServedModel, requests: Any, sizes: Any, limits: ServingLimits) -> Any:
        if 2 in sizes.values():
            raise RuntimeError("a defect")
        return encode(model, requests, sizes, limits)

    monkeypatch.setattr(batching, "encode_batch", encoded)

    async def test() -> None:
        held = Held(export)
        first = held.ask(export.rows[:1])
        await held.busy()
        before, bad, after = held.ask(export.rows[:3]), held.ask(export.rows[:2]), held.ask(export.rows[:4])
        await queued(held, 9)
        held.let(10)
        with pytest.raises(RuntimeError, match="a defect"):
            await bad
        assert [len((await each).outputs["click"]) for each in (first, before, after)] == [1, 3, 4]
        held.batcher.close()

    run(test)


def test_a_client_that_goes_leaves_the_queue_and_is_not_predicted(export: Exported) -> None:
    async def test() -> None:
        held = Held(export)
        gone = asyncio.get_running_loop().create_future()
        first, with_first = held.ask(export.rows[:1]), asyncio.get_running_loop().create_future()
        await held.busy()
        left, other = held.ask(export.rows[:7], gone=gone), held.ask(export.rows[:3], gone=with_first)
        await queued(held, 10)
        gone.set_result(None)
        with pytest.raises(HttpRefused) as refused:
            await left
        assert (refused.value.status, refused.value.code) == (499, "client_gone")
        assert held.batcher.queued_rows == 3
        held.let(2)
        await asyncio.gather(first, other)
        held.batcher.close()
        assert held.batches == [1, 3]

    run(test)


def test_a_batch_whose_clients_all_go_while_it_waits_for_more_ends_nothing(export: Exported) -> None:
    async def test() -> None:
        held = Held(export, ServingLimits(batch_wait_s=1.0))
        gone = asyncio.get_running_loop().create_future()
        left = held.ask(export.rows[:7], gone=gone)
        await queued(held, 7)
        await asyncio.sleep(0.05)
        gone.set_result(None)
        with pytest.raises(HttpRefused):
            await left
        held.let()
        assert len((await held.ask(export.rows[:3])).outputs["click"]) == 3
        held.batcher.close()
        assert held.batches == [3]

    run(test)


def test_each_answer_is_of_one_version_and_a_batch_that_has_begun_keeps_its_own(export: Exported) -> None:
    async def test() -> None:
        held, other = Held(export), Held(export)
        object.__setattr__(other.model.version, "export", "another")
        first = held.ask(export.rows[:1])
        await held.busy()
        second = held.ask(export.rows[:2])
        await queued(held, 2)
        held.batcher.replace(other.model)
        held.let()
        assert (await first).version == export.model.version
        await other.busy()
        other.let()
        assert (await second).version.export == "another"
        held.batcher.close()
        other.batcher.close()

    run(test)


def test_closing_answers_what_was_admitted_and_refuses_what_comes_later(export: Exported) -> None:
    async def test() -> None:
        held = Held(export)
        first = held.ask(export.rows[:1])
        await held.busy()
        second = held.ask(export.rows[:2])
        await queued(held, 2)
        closing = asyncio.get_running_loop().run_in_executor(None, held.batcher.close)
        held.let(2)
        await asyncio.gather(first, second, closing)
        with pytest.raises(HttpRefused, match="is stopping"):
            await held.ask(export.rows[:1])

    run(test)


def test_waiting_for_more_rows_ends_with_a_full_batch(export: Exported) -> None:
    async def test() -> None:
        held = Held(export, ServingLimits(batch_rows=6, batch_wait_s=30.0))
        held.let(2)
        asked = [held.ask(export.rows[:3]), held.ask(export.rows[:3])]
        found = await asyncio.gather(*asked)
        assert [each.batch_rows for each in found] == [6, 6]
        held.batcher.close()

    run(test)
