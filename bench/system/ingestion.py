"""Measures how fast a reader process feeds a trainer over loopback with 13 dense and 26 categorical columns.

The trainer is this process. It pulls every batch and drops it, so the rate is that of the reader. In the same rounds
this process creates the same batches with its own loader, for comparison. Another measurement has a trainer with the
target's rate, and reports the share of time that it waits. In the last one, a reader is killed in the middle of an
epoch, and lost and repeated rows are counted.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.measure import interleave, ratios, repeat
from bench.micro.loader import BATCH_SIZE, BLOCK_ROWS, write_dataset
from ziggurat.core.batch import Batch
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.data.ingest.loader import SEGMENT_ROWS, IngestLoader
from ziggurat.data.ingest.prepared import open_prepared
from ziggurat.data.ingest.processes import ReaderProcesses

PACE = 300_000
"""The rows per second of the trainer whose waiting is measured, and the target of a reader."""
KILLED_SEGMENT_ROWS = 8_192
"""The rows per segment when a reader is killed; it is small, so that most segments are requested after the kill."""


def run(context: Context) -> Result:
    blocks, repeats, warmups = (2, 2, 1) if context.quick else (32, 9, 2)
    folder = context.cache / f"loader-{blocks}"
    context.say(f"generating {blocks * BLOCK_ROWS:,} encoded rows")
    write_dataset(folder, blocks)
    dataset = Dataset(folder)
    local = Loader(dataset.split("train"), dataset.schema, BATCH_SIZE, shuffle=True, prefetch=0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with ReaderProcesses(functools.partial(open_prepared, folder), "127.0.0.1", 0, 1) as readers:
        fed = _fed(local, dataset, readers)
        pulls, makes = _epochs(fed), _epochs(local)
        rates = interleave(
            {"rows_per_reader": lambda: next(pulls), "local": lambda: next(makes)},
            warmups,
            repeats,
            lambda line: context.say(f"{line} rows/s"),
        )
        stalls = repeat(lambda: _stall(fed, context), 1, repeats)
    strays = repeat(lambda: _strays(folder, dataset, local, context), 0, 1 if context.quick else 3)
    torch.set_num_threads(threads)
    return Result(
        (
            Figure("rows_per_reader", "rows/s", rates["rows_per_reader"], "one reader process, one trainer process"),
            Figure("local", "rows/s", rates["local"], "this process creates the batches itself, in its own thread"),
            Figure("vs_local", "x", ratios(rates["rows_per_reader"], rates["local"])),
            Figure("stall", "%", stalls, f"of the time of a trainer of {PACE:,} rows/s"),
            Figure("strays", "rows", strays, "lost or repeated if one of two readers is killed during an epoch"),
        ),
        warmups,
        repeats,
        (
            f"{blocks * BLOCK_ROWS:,} rows an epoch, memory-mapped Arrow in the page cache; batches of {BATCH_SIZE:,}, "
            "shuffled",
            "reader and trainer on one machine, over loopback",
        ),
    )


def _fed(local: Loader, dataset: Dataset, readers: ReaderProcesses, segment_rows: int = SEGMENT_ROWS) -> IngestLoader:
    return IngestLoader(
        local, readers.addresses, "train", dataset.fingerprint, dataset.schema, segment_rows=segment_rows
    )


def _epochs(loader: Loader | IngestLoader) -> Iterator[float]:
    """Yields the rows per second of consecutive epochs."""
    cursor = Cursor()
    while True:
        start, rows = time.perf_counter(), 0
        for batch, after in loader.epoch(cursor):
            rows += batch.size
            cursor = after
        assert rows == loader.rows
        yield rows / (time.perf_counter() - start)


def _stall(fed: IngestLoader, context: Context) -> float:
    """Returns the percentage of time that a trainer of :data:`PACE` rows per second waits."""
    before, start = fed.waited_seconds, time.perf_counter()
    for batch, _ in fed.epoch(Cursor()):
        time.sleep(batch.size / PACE)
    share = 100 * (fed.waited_seconds - before) / (time.perf_counter() - start)
    context.say(f"waits {share:.2f} % of the time")
    return share


def _strays(folder: Path, dataset: Dataset, local: Loader, context: Context) -> float:
    """Returns the number of lost or repeated rows of an epoch in which one of two readers is killed."""
    expected = np.concatenate([_names(batch) for batch, _ in local.epoch(Cursor())])
    seen: list[npt.NDArray[np.int64]] = []
    middle = local.steps_per_epoch // 2
    with ReaderProcesses(functools.partial(open_prepared, folder), "127.0.0.1", 0, 2) as readers:
        for batch, _ in _fed(local, dataset, readers, KILLED_SEGMENT_ROWS).epoch(Cursor()):
            seen.append(_names(batch))
            if len(seen) == middle:
                os.kill(readers.processes[0], signal.SIGKILL)
    strays = _differences(expected, np.concatenate(seen))
    context.say(f"killed one of two readers: {strays} rows lost or repeated")
    return float(strays)


def _names(batch: Batch) -> npt.NDArray[np.int64]:
    """Returns a hash of the ids of each row."""
    assert batch.bags is not None
    ids_KB = batch.bags.values().numpy().reshape(-1, batch.size)
    factors = np.random.default_rng(0).integers(-(2**62), 2**62, len(ids_KB)) | 1
    with np.errstate(over="ignore"):
        return factors @ ids_KB


def _differences(expected: npt.NDArray[np.int64], seen: npt.NDArray[np.int64]) -> int:
    """Returns the sum over rows of the absolute difference between their counts."""
    names, places = np.unique(np.concatenate([expected, seen]), return_inverse=True)
    wanted = np.bincount(places[: len(expected)], minlength=len(names))
    return int(np.abs(np.bincount(places[len(expected) :], minlength=len(names)) - wanted).sum())


INGESTION = Benchmark(
    name="ingestion",
    claim="One reader process feeds 300,000 rows of 39 columns a second; no row is lost or repeated if a reader fails.",
    targets={"rows_per_reader": Target(PACE), "strays": Target(0, "at most")},
    depends_on=("bench/system/ingestion.py",),
    run=run,
)
