"""Where tables are on disk, a batch computes while another waits for its rows; one computes at a time."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.serving.http_kit import Exported, exported
from ziggurat.serving.artefact.manifest import Manifest
from ziggurat.serving.http.batching.batcher import Answer, Batcher
from ziggurat.serving.http.batching.turn import Turn
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.served_model import ServedModel
from ziggurat.serving.model.scorer import Scorer
from ziggurat.serving.tables.inputs import Inputs
from ziggurat.serving.tables.residence import reside
from ziggurat.serving.tables.serving_plan import TableMemory, plan_tables


@pytest.fixture(scope="module")
def export() -> Exported:
    return exported()


def test_one_thread_has_the_turn_and_who_comes_back_goes_first() -> None:
    changed = threading.Condition()
    turn, order = Turn(changed), list[str]()
    may_end, left = threading.Event(), threading.Event()

    def first() -> None:
        with changed:
            turn.begin()
        with turn.left():
            left.set()
            assert may_end.wait(60)
        order.append("first comes back")
        with changed:
            turn.end()

    def begins(name: str) -> None:
        with changed:
            turn.begin()
        order.append(name)
        with changed:
            turn.end()

    one = threading.Thread(target=first)
    one.start()
    assert left.wait(60)
    with changed:
        turn.begin()  # while the first has left it
    order.append("second")
    other = threading.Thread(target=begins, args=("third",))
    other.start()
    may_end.set()
    while not turn.awaited:
        time.sleep(0.001)
    with changed:
        turn.end()
    one.join()
    other.join()
    assert order == ["second", "first comes back", "third"]


class Reading:
    """A batcher of a model with a table on disk, whose batches wait for their reads until they are let go."""

    def __init__(self, export: Exported) -> None:
        plan = plan_tables(export.folder, Manifest.read(export.folder), TableMemory(1 << 16))
        tables = [  # so small that a plan leaves all of them in memory
            replace(each, placed=replace(each.placed, cache_bytes=1 << 14)) if each.entry.name == "item" else each
            for each in plan.tables
        ]
        residence = reside(export.folder, replace(plan, tables=tuple(tables)))
        scorer: Any = Scorer.open(export.folder, residence=residence)
        assert scorer.lookup.reads_disk
        predict = scorer.columns_of_requests
        self.began, self.go = list[int](), dict[int, threading.Event]()
        self.computing, self.most_computing = 0, 0

        def waiting(inputs: Inputs, places: Any, reading: Any) -> Any:
            number = len(self.began)
            self.go[number] = threading.Event()
            self.began.append(inputs.size)
            with reading():
                assert self.go[number].wait(60)
            self.computing += 1
            self.most_computing = max(self.most_computing, self.computing)
            time.sleep(0.02)
            found = predict(inputs, places)
            self.computing -= 1
            return found

        scorer.columns_of_requests = waiting
        self.batcher = Batcher(ServedModel(scorer), ServingLimits())

    def ask(self, rows: list[dict[str, Any]]) -> asyncio.Task[Answer]:
        """Starts a request."""

        async def run() -> Answer:
            until = time.monotonic() + 60
            return await self.batcher.predict(lambda model: model.predict_parts(rows), len(rows), until)

        return asyncio.get_running_loop().create_task(run())

    async def begun(self, *sizes: int) -> None:
        """Waits until batches of these sizes have begun to read, and no others."""
        while tuple(self.began) != sizes:
            assert len(self.began) <= len(sizes), self.began
            await asyncio.sleep(0.001)


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))


def test_a_batch_ends_while_another_waits_for_the_disk(export: Exported) -> None:
    async def test() -> None:
        held = Reading(export)
        first = held.ask(export.rows[:2])
        await held.begun(2)
        second = held.ask(export.rows[2:5])
        await held.begun(2, 3)
        held.go[1].set()
        np.testing.assert_allclose(
            (await second).outputs["click"], export.predictions(export.rows[2:5])[:, 0], atol=1e-6
        )
        assert not first.done()
        held.go[0].set()
        np.testing.assert_allclose((await first).outputs["click"], export.predictions(export.rows[:2])[:, 0], atol=1e-6)
        held.batcher.close()

    run(test)


def test_few_rows_wait_for_more_while_many_are_read(export: Exported) -> None:
    async def test() -> None:
        held = Reading(export)
        first = held.ask(export.rows[:10])
        await held.begun(10)
        second = held.ask(export.rows[:1])
        while not held.batcher.queued_rows:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert held.began == [10]
        third = held.ask(export.rows[:4])
        await held.begun(10, 5)
        fourth = held.ask(export.rows[:1])
        held.go[0].set()
        await first
        held.go[1].set()
        assert [(await each).batch_rows for each in (second, third)] == [5, 5]
        await held.begun(10, 5, 1)
        held.go[2].set()
        await fourth
        held.batcher.close()

    run(test)


def test_one_batch_computes_at_a_time_and_a_server_that_ends_answers_all(export: Exported) -> None:
    async def test() -> None:
        held = Reading(export)
        asked = [held.ask(export.rows[:2])]
        await held.begun(2)
        asked.append(held.ask(export.rows[:2]))
        await held.begun(2, 2)
        asked.append(held.ask(export.rows[:2]))
        await held.begun(2, 2, 2)
        closing = threading.Thread(target=held.batcher.close)
        closing.start()
        for each in list(held.go.values()):
            each.set()
        assert [len((await each).outputs["click"]) for each in asked] == [2, 2, 2]
        closing.join(60)
        assert not closing.is_alive()
        assert held.most_computing == 1

    run(test)
