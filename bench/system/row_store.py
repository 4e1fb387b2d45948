"""Measures rows per second on a disk with little memory, relative to the operating system's paging and to RocksDB.

Every contestant is a process in its own control group, whose memory, including the page cache, is a quarter of the size
of the rows. Ids are uniform, so nothing can be predicted, and few rows are repeated. *Read* reads batches of a few
thousand distinct rows in ascending order. *Update* reads each batch and writes it back changed, like a cache whose rows
are all trained. In each round all contestants take turns.

``device`` reads and writes a sector per row in place with io_uring, and does nothing else. It is the limit of this disk
and of one core. A log may exceed it, because it writes rows sequentially.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import Contestant
from bench.measure import interleave, ratios
from bench.small_memory import limited, unavailable
from bench.system.row_contestants import BATCH, BATCHES, KINDS, WIDTH, without_rocksdb

ROWS, QUICK_ROWS = 24_000_000, 20_000
MEMORY_DIVISOR = 4
"""The size of the rows in multiples of the memory."""
LIBRARIES = 150 * 2**20
"""The bytes of memory for a contestant's program."""
WARMUPS, REPEATS = 2, 9


def run(context: Context) -> Result:
    rows = QUICK_ROWS if context.quick else ROWS
    warmups, repeats = (1, 2) if context.quick else (WARMUPS, REPEATS)
    memory = LIBRARIES + 4 * WIDTH * rows // MEMORY_DIVISOR
    processor: dict[str, list[float]] = {}
    versions: dict[str, str] = {}
    figures: list[Figure] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rows-", dir=context.cache)))
        running: dict[str, Contestant] = {}
        for kind in KINDS:
            context.say(f"filling {kind}: {rows:,} rows")
            group = stack.enter_context(limited(memory, kind))
            into = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
            command = [*into, sys.executable, "-m", "bench.system.row_contestants", kind, str(folder), str(rows)]
            running[kind] = stack.enter_context(Contestant(kind, command)).start()
            versions |= running[kind].versions
        for what in ("read", "update"):

            def asked(kind: str, what: str = what) -> float:
                answer = running[kind].ask(what)
                processor.setdefault(f"{kind}.{what}", []).append(answer["processor_us"])
                return float(answer["rows_per_s"])

            turns: dict[str, Callable[[], float]] = {kind: partial(asked, kind) for kind in KINDS}
            samples = interleave(turns, warmups, repeats, context.say)
            figures += [Figure(f"{kind}.{what}", "rows/s", samples[kind], "") for kind in KINDS]
            best = samples["io_uring"]
            figures += [
                Figure(f"{what}.over_{kind}", "x", ratios(best, samples[kind]), "io_uring over it, round by round")
                for kind in KINDS
                if kind not in {"io_uring", "device"}
            ]
            share = tuple(100 * each for each in ratios(best, samples["device"]))
            figures.append(Figure(f"{what}.of_device", "%", share, "io_uring, of the device's rate"))
        shutil.rmtree(folder, ignore_errors=True)
    figures += [
        Figure(f"{name}.processor", "us", tuple(values[warmups:]), "of one core, per row", "median")
        for name, values in processor.items()
    ]
    notes = (
        f"{rows:,} rows of {4 * WIDTH} bytes, {4 * WIDTH * rows / 2**20:,.0f} MiB in total; "
        f"{memory / 2**20:,.0f} MiB of memory for each contestant, {LIBRARIES / 2**20:.0f} of them for its program",
        f"batches of {BATCH:,} uniform ids without repetitions, {BATCHES} per round",
        "the device writes each row's sector in place; the log writes rows sequentially, and moves some",
        "processor time is that of all threads of the process",
    )
    return Result(tuple(figures), warmups, repeats, notes, versions)


ROW_STORE = Benchmark(
    name="row_store",
    claim="Reading rows past the page cache is several times as fast as paging or RocksDB, near the device's limit.",
    targets={
        "read.over_memmap": Target(3.0),
        "read.over_rocksdb": Target(2.0),
        "update.over_memmap": Target(3.0),
        "update.over_rocksdb": Target(2.0),
        "read.of_device": Target(85.0),
    },
    depends_on=("bench/system/row_store.py", "src/ziggurat/storage/native.c"),
    run=run,
    missing=lambda: unavailable() or without_rocksdb(),
)
