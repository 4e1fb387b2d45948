"""Training with tables four and eight times as large as memory, beside memory for all and beside other ways.

A DLRM over 26 tables of 150,000 rows of width 64, a gigabyte, trained with row-wise Adagrad in batches of 4,096 whose
ids follow Zipf's law. Each contestant is a process; all but the one with memory for everything are in control groups
with memory for a quarter, or an eighth, of the tables beside what the program takes (measured on tables of a few rows),
page cache included. They go by turns, some steps or seconds a round.

Each row that is missing costs a read, and another row leaves that was updated; these are written together. So the
device bounds what a cache of this size can do: a step cannot take less than the device is at work for it, nor less than
it takes with memory for everything. ``of_limit`` is what of that bound is reached.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT, Contestant
from bench.measure import interleave, ratios
from bench.provenance import digest
from bench.resumable_cases import ResumableCases
from bench.small_memory import limited, resize, unavailable
from bench.system.row_contestants import without_rocksdb
from bench.system.tiered_contestants import FULL, QUICK

EXPONENTS = (1.05, 1.2)
TIMES = (4, 8)
KINDS = ("memory", "look_ahead", "no_look_ahead", "lru", "rocksdb", "paging")
STEPS, SECONDS = 20, 8.0
"""Of a round: whichever comes first."""
WARM = 150
"""Steps before the first round: the cache is full then, and what leaves it has been written."""
WARM_S = 60.0
WARMUPS, REPEATS = 1, 5
SPARE = 128 * 2**20
"""Bytes of memory beside program and rows: for rows on their way, and what the system keeps of files."""
ROCKSDB = 512 * 2**20
"""Bytes more for RocksDB, a database a table, whose buffers lie beside the slots; without them it is ended."""
PAGING = 4 * 2**30
"""Bytes more for paging until its tables are in a file."""
HEADINGS = ("tables", "exponent", "contestant", "steps/s", "hit rate", "reads", "writes", "MB a step", "waited", "disk")


def run(context: Context) -> Result:
    size = QUICK if context.quick else FULL
    steps, warm, repeats = (3, 5, 2) if context.quick else (STEPS, WARM, REPEATS)
    table_bytes = 4 * size.tables * size.rows * (size.dim + 1)
    figures: list[Figure] = []
    cases = [HEADINGS]
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="tiered-notes-") as scratch:
        place = (Path(scratch) if context.quick else context.cache) / "tiered-training.jsonl"
        resumable = ResumableCases(place, digest(ROOT, TIERED_TRAINING.depends_on))
        said = (f"{len(resumable)} parts in an earlier sitting",) if len(resumable) else ()
        base = resumable.get("base", partial(base_bytes, context, steps))
        for exponent in EXPONENTS[:1] if context.quick else EXPONENTS:
            for times in TIMES[:1] if context.quick else TIMES:
                name = f"{times}x_{exponent:g}"
                length = steps, warm, repeats
                measure = partial(measured, context, KINDS, exponent, table_bytes / times, base, length)
                rounds = resumable.get(name, measure)
                figures += compared(name, rounds)
                cases += lines(f"{times} × memory", f"{exponent:g}", rounds)
        resumable.forget()
    notes = (
        f"{size.tables} tables of {size.rows:,} rows of {size.dim} floats, {table_bytes / 2**20:,.0f} MiB with states; "
        f"batches of {size.batch_size:,}; one thread beside the one that brings rows",
        f"the program takes {base / 2**20:,.0f} MiB beside the tables, and has {SPARE / 2**20:.0f} more, RocksDB's "
        f"{ROCKSDB / 2**20:.0f} beside",
        f"{warm} steps or {WARM_S:g} s before the first round; a round is {steps} steps or {SECONDS:g} s",
        *said,
    )
    return Result(tuple(figures), WARMUPS, repeats, notes, {}, tuple(cases))


def base_bytes(context: Context, steps: int) -> int:
    """Bytes that the program takes beside its tables."""
    with (
        tempfile.TemporaryDirectory(dir=context.cache) as folder,
        Contestant("base", _command("base", Path(folder), 1.05, 0, context.quick)).start() as running,
    ):
        return int(running.ask(f"{steps} {SECONDS}")["peak"])


def _command(kind: str, folder: Path, exponent: float, memory: float, quick: bool) -> list[str]:
    program = [sys.executable, "-m", "bench.system.tiered_contestants", kind, str(folder)]
    return [*program, str(exponent), str(memory), *["quick"] * quick]


def measured(
    context: Context,
    kinds: Sequence[str],
    exponent: float,
    memory: float,
    base: int,
    length: tuple[int, int, int],
    folders: Mapping[str, Path] | None = None,
    more: Mapping[str, int] | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Of each contestant what it answered in each round, warm-ups left out.

    Args:
        context: of the run.
        kinds: contestants.
        exponent: of the ids.
        memory: bytes for rows.
        base: bytes of the program.
        length: steps of a round, steps before the first, rounds.
        folders: where the files of some kinds are to lie.
        more: bytes that some kinds take beside; default: what RocksDB's buffers do, and paging until its tables are in
            a file.
    """
    more = {"paging": PAGING, "rocksdb": ROCKSDB} if more is None else more
    steps, warm, repeats = length
    answers: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiered-", dir=context.cache)))
        running: dict[str, Contestant] = {}
        for kind in kinds:
            context.say(f"{kind}: {memory / 2**20:,.0f} MiB for rows, exponent {exponent:g}")
            group, most = None, int(base + memory + SPARE)
            command = _command(kind, (folders or {}).get(kind, folder), exponent, memory, context.quick)
            if kind != "memory":
                group = stack.enter_context(limited(most + more.get(kind, 0), kind))
                command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *command]
            running[kind] = stack.enter_context(Contestant(kind, command)).start()
            if group is not None and kind == "paging":
                resize(group, most)
            running[kind].ask(f"{warm} {WARM_S}")

        def asked(kind: str) -> float:
            answers[kind].append(running[kind].ask(f"{steps} {SECONDS}"))
            return 1 / float(answers[kind][-1]["seconds"])

        turns: dict[str, Callable[[], float]] = {kind: partial(asked, kind) for kind in kinds}
        interleave(turns, WARMUPS, repeats, context.say)
    return {kind: each[WARMUPS:] for kind, each in answers.items()}


def compared(name: str, rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Figure]:
    """Figures of what :func:`measured` found."""
    rates = {kind: tuple(1 / float(each["seconds"]) for each in answers) for kind, answers in rounds.items()}
    ours = rates["look_ahead"]
    shares = tuple(100 * each for each in ratios(ours, rates["memory"]))
    found = [Figure(f"{name}.of_memory", "%", shares, "steps a second, of those with memory for all rows")]
    found += [
        Figure(f"{name}.over_{kind}", "x", ratios(ours, rates[kind]), "round by round")
        for kind in rates
        if kind not in {"memory", "look_ahead"}
    ]
    found += [Figure(f"{name}.{kind}", "steps/s", each, "") for kind, each in rates.items()]
    found += [
        Figure(
            f"{name}.{kind}.processor", "ms", tuple(1e3 * each["processor_s"] for each in answers), "of a core, a step"
        )
        for kind, answers in rounds.items()
    ]
    mine = rounds["look_ahead"]
    least = [max(1 / rate, each["worked_s"]) for rate, each in zip(rates["memory"], mine, strict=True)]
    reached = tuple(100 * bound / each["seconds"] for bound, each in zip(least, mine, strict=True))
    waited = tuple(1e3 * each["waited_s"] for each in mine)
    busy = tuple(100 * each["worked_s"] / each["seconds"] for each in mine)
    return [
        *found,
        Figure(
            f"{name}.of_limit", "%", reached, "of the steps a second that the device, or all in memory, would allow"
        ),
        Figure(f"{name}.disk_at_work", "%", busy, "of the time"),
        Figure(f"{name}.waited", "ms", waited, "a step, for rows"),
    ]


def lines(size: str, exponent: str, rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, ...]]:
    """A line for each contestant, below :data:`HEADINGS`."""
    found: list[tuple[str, ...]] = []
    for kind, answers in rounds.items():

        def mean(key: str, answers: Sequence[Mapping[str, Any]] = answers) -> float:
            return sum(float(each.get(key, 0)) for each in answers) / len(answers)

        rate = f"{1 / mean('seconds'):.2f}"
        if not mean("lookups"):
            found.append((size, exponent, kind, rate, *[""] * 6))
            continue
        hits = f"{100 * (1 - mean('missed') / mean('lookups')):.1f} %"
        moved = (mean("read_bytes") + mean("written_bytes")) / 1e6
        counts = (f"{mean('reads'):,.0f}", f"{mean('writes'):,.0f}", f"{moved:.2f}")
        times = (f"{1e3 * mean('waited_s'):.0f} ms", f"{1e3 * mean('worked_s'):.0f} ms")
        found.append((size, exponent, kind, rate, hits, *counts, *times))
    return found


TIERED_TRAINING = Benchmark(
    name="tiered_training",
    claim="Tables four and eight times as large as memory train nearly as fast as with memory for all of them.",
    targets={
        **{f"{times}x_{exponent:g}.of_memory": Target(80.0) for times in TIMES for exponent in EXPONENTS},
        "8x_1.05.of_limit": Target(85.0),  # where the device forbids 80 % of what memory gives
        **{f"{times}x_{exponent:g}.over_paging": Target(3.0) for times in TIMES for exponent in EXPONENTS},
        **{f"{times}x_{exponent:g}.over_lru": Target(2.0) for times in TIMES for exponent in EXPONENTS},
        **{f"{times}x_{exponent:g}.over_rocksdb": Target(2.0) for times in TIMES for exponent in EXPONENTS},
    },
    depends_on=("bench/system/tiered_training.py", "src/ziggurat/storage/native.c"),
    run=run,
    missing=lambda: unavailable() or without_rocksdb(),
)
