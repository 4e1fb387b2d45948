"""Predicts the rows of several requests together, in a thread beside the event loop.

While a batch is predicted, requests wait in a queue of bounded length; the next batch takes as many as fit. So batches
grow with the load, and a lone request does not wait. A request that cannot be answered before its deadline is refused
at once, by what batches took lately, and one whose deadline passes, or whose client goes, while it waits is not
predicted. Where tables are on disk there are some threads, of which one computes at a time: while a batch waits for its
rows, another begins or ends.

Shape legend: B rows, C columns of all labels.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from ziggurat.core.errors import ZigguratError
from ziggurat.serving.http.batching.admission import Admission
from ziggurat.serving.http.batching.encode_batch import encode_batch
from ziggurat.serving.http.batching.turn import Turn
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.refusals import HttpRefused, overloaded
from ziggurat.serving.http.served_model import ServedModel, Version
from ziggurat.serving.model.given_rows import GivenRows
from ziggurat.serving.model.requests import EncodedRequests, predict_requests
from ziggurat.serving.model.scorer import predictions
from ziggurat.serving.tables.lookup import TableUnreadable

Floats = npt.NDArray[np.float32]
_OVERLAPPING, _PART = 3, 0.5
"""Batches that are on their way where tables are on disk; the rows that wait for another to begin, as a part of those
of all others."""
_NICER = 5
"""By how much the thread that predicts is nicer than the event loop."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The predictions for a request.

    Attributes:
        outputs: name of an output -> its numbers (B,): of each label, then of ``LABEL/NAME``.
        version: the model that gave all of them.
        batch_rows: rows that were predicted together.
        queue_s, encode_s, predict_s: seconds that it waited, that its batch was encoded, and that it was predicted.
    """

    outputs: dict[str, Floats]
    version: Version
    batch_rows: int
    queue_s: float
    encode_s: float
    predict_s: float


@dataclass(slots=True, eq=False)
class _Job:
    """A request that waits.

    Attributes:
        make: makes its parts for a model; raises :class:`HttpRefused`.
        rows: B.
        deadline: when it must be answered (monotonic seconds).
        answer: gets the answer, in the event loop.
        is_rank: whether it is one to rank, for messages.
        arrived: when it was queued.
        is_settled: whether its answer or error was handed over.
    """

    make: Callable[[ServedModel], list[GivenRows]]
    rows: int
    deadline: float
    answer: asyncio.Future[Answer]
    is_rank: bool
    arrived: float
    is_settled: bool = False


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """What a batch was, for whoever observes.

    Attributes:
        rows, requests: how many.
        encoded: the encoded requests.
        outputs: name of an output -> its numbers, of all rows.
        model: the model.
        encode_s, predict_s: seconds.
        queued_rows: rows that wait now.
    """

    rows: int
    requests: int
    encoded: Sequence[EncodedRequests]
    outputs: Mapping[str, Floats]
    model: ServedModel
    encode_s: float
    predict_s: float
    queued_rows: int


class Batcher:
    """Predicts requests with a model, in threads of its own, with as many threads of torch as the one that makes it.

    Args:
        model: the model; :meth:`replace` exchanges it between two batches.
        limits: the bounds of queue and batches.
        observe: is told of each batch, in a thread of the batcher's, of one after another.

    Attributes:
        admission: which requests may wait.
    """

    def __init__(
        self, model: ServedModel, limits: ServingLimits, observe: Callable[[BatchFigures], None] = lambda _: None
    ) -> None:
        self._model, self._limits, self._observe = model, limits, observe
        self._changed = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._queued_rows = 0
        self._busy_rows = dict[int, int]()
        """Thread -> rows of its batch that somebody waits for."""
        self._next, self._turn, self._ended = threading.Lock(), Turn(self._changed), 0.0
        self.admission = Admission(limits)
        self._closing = False
        self._threads = torch.get_num_threads()
        count = _OVERLAPPING if model.scorer.lookup.reads_disk else 1
        self._predicting = [threading.Thread(target=self._run, name="predict", daemon=True) for _ in range(count)]
        for thread in self._predicting:
            thread.start()

    @property
    def model(self) -> ServedModel:
        """The model that the next batch is predicted with."""
        return self._model

    @property
    def queued_rows(self) -> int:
        """Rows that wait."""
        return self._queued_rows

    def replace(self, model: ServedModel) -> None:
        """Exchanges the model; a batch that has begun ends with the one before."""
        self._model = model

    def overload(self) -> HttpRefused | None:
        """Returns the refusal of whatever request arrives now, because the queue stands; None if it may be admitted."""
        with self._changed:
            return self.admission.overload(time.monotonic(), self._queued_rows, self._begun_rows)

    async def predict(
        self,
        make: Callable[[ServedModel], list[GivenRows]],
        rows: int,
        deadline: float,
        *,
        is_rank: bool = False,
        gone: asyncio.Future[None] | None = None,
    ) -> Answer:
        """Returns the predictions for a request.

        Args:
            make: makes its parts for a model, in the batcher's thread.
            rows: how many rows it has.
            deadline: when it must be answered (monotonic seconds).
            is_rank: whether it is one to rank.
            gone: is done once its client has gone; it is not predicted then, if its batch has not begun.

        Raises:
            HttpRefused: there are too many rows before it, its deadline cannot be met or has passed, its rows cannot
                be predicted, or its client has gone.
        """
        now = time.monotonic()
        with self._changed:
            if self._closing:
                raise overloaded("this server is stopping", 1.0)
            wait_s = self.admission.admit(now, deadline, rows, self._queued_rows, self._begun_rows)
            job = _Job(make, rows, deadline, asyncio.get_running_loop().create_future(), is_rank, now)
            self._queue.append(job)
            self._queued_rows += rows
            if self._may_begin():
                self._changed.notify_all()
        leave = partial(self._leave, job)
        if gone is not None:
            gone.add_done_callback(leave)
        try:
            return await job.answer
        finally:
            if gone is not None:
                gone.remove_done_callback(leave)
            if job.answer.done() and not job.answer.cancelled() and not (gone is not None and gone.done()):
                self.admission.late.add(time.monotonic() - now - wait_s)
            job.answer.cancel()

    def _leave(self, job: _Job, _: asyncio.Future[None]) -> None:
        """Refuses the request of a client that has gone, and takes it out of the queue."""
        if not job.answer.done():
            job.answer.set_exception(HttpRefused(499, "client_gone", "the client went before it was answered"))
        with self._changed:
            if job in self._queue:
                self._queue.remove(job)
                self._queued_rows -= job.rows
                self._changed.notify_all()

    def close(self) -> None:
        """Predicts what was admitted, and ends the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._predicting:
            thread.join()

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # OpenMP counts by thread, and would take one for each core here
        _yield_to_others()
        while jobs := self._take():
            self._predict_or_refuse(jobs)
            with self._changed:
                self._busy_rows[threading.get_ident()] = 0  # of clients that have gone
                self._turn.end()

    def _predict_or_refuse(self, jobs: list[_Job]) -> None:
        """Predicts requests together; if that fails, each alone, so that it fails only those which it fails for."""
        try:
            self._predict(jobs)
        except Exception as error:  # noqa: BLE001 - the request gets it, and the thread goes on
            left = [job for job in jobs if not job.is_settled]
            if len(left) > 1:
                for job in left:
                    self._predict_or_refuse([job])
            elif left:
                self._settle({left[0]: _refused(error)})

    def _take(self) -> list[_Job]:
        """Waits for requests and for the turn to predict them; returns those of the next batch, none if there will be
        no more."""
        jobs: list[_Job] = []
        with self._next, self._changed:
            while not jobs:
                while not self._may_begin():
                    if self._closing and not self._queue:
                        return []
                    self._changed.wait()
                if self._limits.batch_wait_s:
                    self._wait_for_more()
                self._turn.begin()
                jobs = self._next_batch()
                if not jobs:  # the clients have gone meanwhile
                    self._turn.end()
            return jobs

    def _next_batch(self) -> list[_Job]:
        """Takes as many requests from the queue as a batch may have."""
        jobs: list[_Job] = []
        rows = 0
        while self._queue and (not jobs or rows + self._queue[0].rows <= self._limits.batch_rows):
            job = self._queue.popleft()
            self._queued_rows -= job.rows
            jobs.append(job)
            rows += job.rows
        self._busy_rows[threading.get_ident()] = rows
        return jobs

    @property
    def _begun_rows(self) -> int:
        """Rows of all batches that have begun, that somebody waits for."""
        return sum(self._busy_rows.values())

    def _may_begin(self) -> bool:
        """Whether a batch may begin: rows wait, and not few beside those of batches that have begun.

        Much of what a batch costs does not depend on its size; so what would be one batch is not divided into many.
        """
        return bool(self._queue) and self._queued_rows >= _PART * self._begun_rows

    def _wait_for_more(self) -> None:
        """Waits until a batch is full, the time for that is over, or a deadline is near."""
        until = self._queue[0].arrived + self._limits.batch_wait_s
        while self._queue and self._queued_rows < self._limits.batch_rows and not self._closing:
            nearest = min(job.deadline for job in self._queue) - 2 * self._queued_rows * self.admission.lately.of_a_row
            left = min(until, nearest) - time.monotonic()
            if left <= 0 or not self._changed.wait(left):
                return

    def _predict(self, jobs: list[_Job]) -> None:
        model = self._model
        began = time.monotonic()
        takes_s = self.admission.lately.of_a_row * sum(job.rows for job in jobs)
        given: dict[int, list[GivenRows]] = {}
        refused: dict[_Job, Answer | Exception] = {}
        for number, job in enumerate(jobs):
            if job.answer.done():  # its client has gone
                continue
            try:
                # What waited for less than a batch takes is tried: else nothing would tell that batches take less now.
                if began + (takes_s if began - job.arrived > takes_s else 0.0) > job.deadline:
                    raise overloaded("the time in which this request must be answered passed while it waited", 0.0)
                given[number] = job.make(model)
            except Exception as error:  # noqa: BLE001 - it is this request's alone
                refused[job] = error
        batch = encode_batch(model, given, {number: jobs[number].rows for number in given}, self._limits)
        refused |= {jobs[number]: error for number, error in batch.refused.items()}
        self._settle(refused)
        ready = [jobs[number] for number in batch.order]
        if not ready:
            return
        start = time.monotonic()
        columns_BC = predict_requests(model.scorer, batch.encoded, self._turn.left)
        found_BT, further = predictions(model.scorer.manifest, columns_BC)
        outputs = _outputs(model, found_BT, further)
        end = time.monotonic()
        rows = len(columns_BC)
        self.admission.lately.add(rows, end - max(began, self._ended), len(ready))  # batches overlap
        self._ended = end
        at = 0
        answers: dict[_Job, Answer | Exception] = {}
        for job in ready:
            mine = {name: values[at : at + job.rows] for name, values in outputs.items()}
            at += job.rows
            fault = _not_finite(mine, job.is_rank)
            answer = Answer(mine, model.version, rows, began - job.arrived, start - began, end - start)
            answers[job] = fault or answer
        self._settle(answers)
        figures = BatchFigures(
            rows, len(ready), batch.encoded, outputs, model, start - began, end - start, self._queued_rows
        )
        self._observe(figures)

    def _settle(self, results: Mapping[_Job, Answer | Exception]) -> None:
        """Hands results over; nobody waits for their rows any more, though the batch may still be observed."""
        me = threading.get_ident()
        with self._changed:
            self._busy_rows[me] = max(0, self._busy_rows[me] - sum(job.rows for job in results))
        for job in results:
            job.is_settled = True
        _hand_over(results)


def _yield_to_others() -> None:
    """Lowers the priority of this thread below that of the event loop's, where the system has one for each thread.

    Else the loop gets half a core of an overloaded server, too little to refuse most requests at once, and those that
    are admitted wait for it, too.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICER)


def _refused(error: Exception) -> Exception:
    """Returns what a request gets for an error."""
    if not isinstance(error, TableUnreadable):
        return error
    problem = f"rows of the table {error.table!r} that this request needs cannot be read"
    return HttpRefused(503, "table_unreadable", problem, "check the disk", retry_after_s=5)


def _outputs(model: ServedModel, found_BT: Floats, further: Mapping[str, Mapping[str, Floats]]) -> dict[str, Floats]:
    outputs = {task.name: found_BT[:, number] for number, task in enumerate(model.scorer.manifest.tasks)}
    for label, more in further.items():
        outputs |= {f"{label}/{name}": values for name, values in more.items()}
    return outputs


def _not_finite(outputs: Mapping[str, Floats], is_rank: bool) -> HttpRefused | None:
    for label, values in outputs.items():
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            where = f"{'candidates' if is_rank else 'rows'}[{row}]"
            hint = "correct extreme values; to train a model that bears them, add a `clip` or `log` transform"
            problem = f"{where}: the model computes no finite number for {label!r} from it"
            return HttpRefused(422, "not_finite", problem, hint, rows=({"at": where, "row": row, "problem": problem},))
    return None


def _hand_over(results: Mapping[_Job, Answer | Exception]) -> None:
    """Hands answers and errors to the event loop, which is woken once for all of them."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Job, Answer | Exception]]] = {}
    for job, result in results.items():
        by_loop.setdefault(job.answer.get_loop(), []).append((job, result))
    for loop, settled in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(_set_results, settled)


def _set_results(settled: Sequence[tuple[_Job, Answer | Exception]]) -> None:
    for job, result in settled:
        if job.answer.done():
            continue
        if isinstance(result, Answer):
            job.answer.set_result(result)
        elif isinstance(result, ZigguratError):
            job.answer.set_exception(HttpRefused(422, "invalid_rows", result.problem, result.hint))
        else:
            job.answer.set_exception(result)
