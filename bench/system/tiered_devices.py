"""Measures training with tables larger than memory on emulated devices: NAND flash and 3D XPoint, by their data sheets.

The training is that of :mod:`bench.system.tiered_training`, with memory for an eighth of the tables. It runs on the
disk of this machine and on two emulated devices. Their files are in memory, and each batch of requests is delayed to
take as long as on the device (:class:`~ziggurat.storage.async_io.Throttled`). This distinguishes limits of the disk
from limits of the processor. Reads and writes must be the same on all devices, because they only depend on ids and
memory.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.measure import ratios
from bench.small_memory import unavailable as no_small_memory
from bench.system.tiered_contestants import FULL, QUICK
from bench.system.tiered_training import HEADINGS, base_bytes, compared, lines, measured
from ziggurat.storage.anonymous_files import free_bytes
from ziggurat.storage.async_io import DEVICES

EXPONENTS = (1.05, 1.2)
TIMES = 8
KINDS = ("memory", "look_ahead", *DEVICES)
STEPS, WARM, REPEATS = 20, 150, 5
IN_MEMORY = Path("/dev/shm")
FILES = 3
"""The largest size of the files, in multiples of the tables."""
TABLE_BYTES = 4 * FULL.tables * FULL.rows * (FULL.dim + 1)


def run(context: Context) -> Result:
    size = QUICK if context.quick else FULL
    times, length = (TIMES // 2, (3, 5, 2)) if context.quick else (TIMES, (STEPS, WARM, REPEATS))
    table_bytes = 4 * size.tables * size.rows * (size.dim + 1)
    figures: list[Figure] = []
    cases = [HEADINGS]
    base = base_bytes(context, length[0])
    for exponent in EXPONENTS[:1] if context.quick else EXPONENTS:
        name = f"{times}x_{exponent:g}"
        with ExitStack() as stack:
            folders = {
                kind: Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{kind}-", dir=IN_MEMORY)))
                for kind in DEVICES
            }
            more = dict.fromkeys(DEVICES, FILES * table_bytes)
            rounds = measured(context, KINDS, exponent, table_bytes / times, base, length, folders, more)
        disk = [each for each in compared(name, rounds) if "over_" not in each.name]
        figures += [*disk, *(figure for kind in DEVICES for figure in _of(name, kind, rounds))]
        cases += lines(f"{times} × memory", f"{exponent:g}", rounds)
    notes = (
        f"as tiered_training, {table_bytes / 2**20:,.0f} MiB of tables; look_ahead uses this machine's disk",
        *(
            f"{kind}: {device.reads:,.0f} reads/s, {device.writes:,.0f} writes/s, {1e6 * device.read_s:.0f} µs a read, "
            f"{device.read_bandwidth / 1e9:g} GB/s read, {device.write_bandwidth / 1e9:g} written"
            for kind, device in DEVICES.items()
        ),
        "the files of these devices are in memory, in addition to the limit; the processor copies their data",
    )
    return Result(tuple(figures), 1, length[2], notes, {}, tuple(cases))


def _of(name: str, kind: str, rounds: dict[str, list[dict[str, Any]]]) -> list[Figure]:
    """Returns the figures of an emulated device, relative to the disk of this machine."""
    rates = {each: tuple(1 / float(answer["seconds"]) for answer in rounds[each]) for each in ("memory", kind)}
    shares = tuple(100 * each for each in ratios(rates[kind], rates["memory"]))
    mine, disk = rounds[kind], rounds["look_ahead"]
    busy = tuple(100 * each["worked_s"] / each["seconds"] for each in mine)
    reads, missed = (
        tuple(100 * abs(each[what] - other[what]) / max(1, other[what]) for each, other in zip(mine, disk, strict=True))
        for what in ("reads", "missed")
    )
    return [
        Figure(f"{name}.{kind}.of_memory", "%", shares, "steps a second, relative to memory for all rows"),
        Figure(f"{name}.{kind}.at_work", "%", busy, "of the time the device is busy"),
        Figure(f"{name}.{kind}.reads_off", "%", reads, "difference in reads per step from this machine's disk"),
        Figure(f"{name}.{kind}.missed_off", "%", missed, "the same for missing rows per step"),
    ]


def unavailable() -> str | None:
    """Returns why this machine cannot run the benchmark, or None if it can."""
    if (reason := no_small_memory()) is not None:
        return reason
    wanted = FILES * TABLE_BYTES
    if not IN_MEMORY.is_dir() or free_bytes(IN_MEMORY) < wanted:
        return f"{IN_MEMORY} has no {wanted / 2**30:.1f} GiB of memory for files"
    return None


TIERED_DEVICES = Benchmark(
    name="tiered_devices",
    claim="On devices that are faster than this machine's, tables eight times as large as memory train nearly as fast "
    "as in memory, and the number of reads does not depend on the device.",
    targets={
        **{f"{TIMES}x_{exponent:g}.{kind}.of_memory": Target(80.0) for exponent in EXPONENTS for kind in DEVICES},
        **{
            f"{TIMES}x_{exponent:g}.{kind}.{what}_off": Target(5.0, "at most")
            for exponent in EXPONENTS
            for kind in DEVICES
            for what in ("reads", "missed")
        },
    },
    depends_on=("bench/system/tiered_devices.py", "src/ziggurat/storage/native.c"),
    run=run,
    missing=unavailable,
)
