"""Swaps the model of a predictor again and again while four threads predict with it.

A small training keeps several checkpoints. A :class:`~ziggurat.training.prediction.swappable.SwappablePredictor` opens
one after another, in rotation, without a pause. Meanwhile four threads predict requests of a few rows each, drawn from
a fixed set. What each checkpoint answers to each request is computed before, with nothing else running.

An answer is *right* if it is, to the bit, that of a checkpoint that was in use at some moment of the call. There are
three checkpoints, so that an answer of the third one, or a mixture of two, is wrong. A call that raises an error is
*failed*. The growth of memory is that of the resident set from the first tenth of the swaps to the last.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import torch

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.system.crash_training import experiment
from ziggurat.core.config import parse_config
from ziggurat.data.synthetic.config import CategoricalColumn, GeneratorConfig, LabelColumn
from ziggurat.data.synthetic.generate import generate
from ziggurat.training import api
from ziggurat.training.experiment import Experiment

SWAPS, QUICK_SWAPS = 1_000, 12
THREADS = 4
REQUESTS, ROWS = 50, 8
CHECKPOINTS = (5, 10, 15)
"""Steps of the training whose checkpoints take turns."""
COLUMNS = {"user": 3_000, "item": 2_000, "place": 40}

Request = Mapping[str, list[int]]
Answer = npt.NDArray[np.float32]


@dataclass(slots=True)
class Tally:
    """What the threads saw.

    Attributes:
        answers: number of calls.
        failures: the errors of calls that failed.
        wrong: number of answers that no model in use gives.
        swapped: number of right answers of calls during which the model was swapped.
    """

    answers: int = 0
    failures: list[str] = field(default_factory=list[str])
    wrong: int = 0
    swapped: int = 0


class Swaps:
    """A predictor under load, and the record of which checkpoints are in use.

    Args:
        run: the run folder.
        requests: the requests to draw from.
        expected: checkpoint -> the right answer to each request.
    """

    def __init__(self, run: Path, requests: Sequence[Request], expected: Mapping[int, Sequence[Answer]]) -> None:
        self._run, self._requests, self._expected = run, requests, expected
        self._predictor = api.SwappablePredictor(run, str(CHECKPOINTS[0]))
        self._history = [CHECKPOINTS[0]]
        """The checkpoints, in the order in which swaps to them began."""
        self._ended_swaps = 0
        self._stop = threading.Event()

    def run(self, swaps: int, say: Any) -> tuple[Tally, list[float], list[float]]:
        """Swaps so many times under load.

        Returns:
            The tally of all threads, the seconds of each swap, and the resident MiB after it.
        """
        tallies = [Tally() for _ in range(THREADS)]
        threads = [
            threading.Thread(target=self._load, args=(number, tally), daemon=True)
            for number, tally in enumerate(tallies)
        ]
        for thread in threads:
            thread.start()
        seconds, resident, process = list[float](), list[float](), psutil.Process(os.getpid())
        try:
            for number in range(swaps):
                step = CHECKPOINTS[(number + 1) % len(CHECKPOINTS)]
                started = time.perf_counter()
                self._history.append(step)
                self._predictor.swap(self._run, str(step))
                self._ended_swaps += 1
                seconds.append(time.perf_counter() - started)
                resident.append(process.memory_info().rss / 2**20)
                if (number + 1) % max(1, swaps // 10) == 0:
                    answers = sum(tally.answers for tally in tallies)
                    say(f"swap {number + 1} of {swaps}, {answers:,} answers, {resident[-1]:,.0f} MiB")
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
            self._predictor.close()
        return _total(tallies), seconds, resident

    def _load(self, number: int, tally: Tally) -> None:
        draw = np.random.default_rng(number)
        while not self._stop.is_set():
            request = int(draw.integers(len(self._requests)))
            first = self._ended_swaps  # the model of this swap is in use, and those of all that begin from now on
            try:
                found = self._predictor.predict(self._requests[request])
            except Exception as error:  # noqa: BLE001 - any error is a failed answer
                tally.failures.append(f"{type(error).__name__}: {error}")
                found = None
            used = self._history[first:]
            tally.answers += 1
            if found is not None:
                right = any(np.array_equal(found, self._expected[step][request]) for step in used)
                tally.wrong += not right
                tally.swapped += right and len(used) > 1


def _total(tallies: Sequence[Tally]) -> Tally:
    return Tally(
        sum(tally.answers for tally in tallies),
        [failure for tally in tallies for failure in tally.failures],
        sum(tally.wrong for tally in tallies),
        sum(tally.swapped for tally in tallies),
    )


def trained(folder: Path) -> Path:
    """Trains a small run that keeps the checkpoints of :data:`CHECKPOINTS`; returns its folder."""
    columns = tuple(CategoricalColumn(name=name, cardinality=rows) for name, rows in COLUMNS.items())
    labels = (LabelColumn(name="y", rate=0.3),)
    generate(
        GeneratorConfig(rows=6_000, labels=labels, categorical=columns, pairs=(("user", "item"),)), folder / "log.csv"
    )
    values = experiment(folder, "full", max(CHECKPOINTS))
    values["training"] |= {"keep": len(CHECKPOINTS)}
    return api.train(parse_config(Experiment, values), folder / "run", prepared=folder / "prepared").run.folder


def requests() -> list[Request]:
    """Returns requests of a few rows each, the same every time."""
    draw = np.random.default_rng(0)
    return [{name: draw.integers(rows, size=ROWS).tolist() for name, rows in COLUMNS.items()} for _ in range(REQUESTS)]


def answers(run: Path, wanted: Sequence[Request]) -> dict[int, list[Answer]]:
    """Returns checkpoint -> the right answer to each request.

    Raises:
        AssertionError: two checkpoints give the same answer, so that they could not be told apart.
    """
    found: dict[int, list[Answer]] = {}
    for step in CHECKPOINTS:
        with api.Predictor(run, str(step)) as predictor:
            found[step] = [predictor.predict(request) for request in wanted]
    for each in zip(*found.values(), strict=True):
        assert len({answer.tobytes() for answer in each}) == len(CHECKPOINTS)
    return found


def run(context: Context) -> Result:
    swaps = QUICK_SWAPS if context.quick else SWAPS
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="model-swaps-") as scratch:
        folder = trained(Path(scratch).resolve())
        wanted = requests()
        tally, seconds, resident = Swaps(folder, wanted, answers(folder, wanted)).run(swaps, context.say)
    torch.set_num_threads(threads)  # the training sets one
    early = resident[max(0, len(resident) // 10 - 1)]
    figures = (
        Figure("swaps", "", (float(len(seconds)),), f"under load from {THREADS} threads"),
        Figure("failed", "", (float(len(tally.failures)),), f"of {tally.answers:,} answers"),
        Figure("wrong", "", (float(tally.wrong),), f"{tally.swapped:,} right ones during a swap"),
        Figure("swap", "s", tuple(seconds), "opening the next model, and closing the one before"),
        Figure("answers", "answers/s", (tally.answers / sum(seconds),), f"of {ROWS} rows each"),
        Figure("growth", "MiB", (resident[-1] - early,), f"of {early:,.0f} MiB after a tenth of the swaps"),
    )
    return Result(figures, 0, len(seconds), tuple(sorted(set(tally.failures))[:5]))


MODEL_SWAPS = Benchmark(
    name="model_swaps",
    claim="A model is swapped under load without a failed or wrong answer, a thousand times in one process.",
    targets={"swaps": Target(SWAPS), "failed": Target(0, "at most"), "wrong": Target(0, "at most")},
    depends_on=("bench/system/model_swaps.py",),
    run=run,
)
