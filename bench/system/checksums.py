"""Measures what comparing the blocks of a prepared dataset with their checksums costs.

Each task has two datasets of the same files. One lacks checksums, as datasets of format version 1 do, so that nothing
is compared. Both are read in the same round, in rotating order. A process compares a block when it first reads it, so
there are two costs: that of the first epoch of a process, and that of its later ones.

`loader` reads batches on one core, and does nothing else. `training` is `ziggurat.train` on the tables of the benchmark
`throughput`; the first epoch of a training is measured in a new process each time, the process's start excluded.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import workloads
from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import Contestant
from bench.measure import Samples, interleave
from bench.micro.loader import BLOCK_ROWS, write_dataset

NOTES = (
    "cost: how many per cent more time the same rows take with checksums, the median of the rounds; it may be negative "
    "by chance",
    "first epoch: every block is compared; later epochs: the file's change time is looked at",
    "a dataset without checksums is one of format version 1, made of hard links to the same files",
)


def run(context: Context) -> Result:
    warmups, repeats = (0, 1) if context.quick else (1, 9)
    say = context.say
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="checksums-") as scratch:
        blocks = 2 if context.quick else 32
        rows = Path(scratch) / "rows"
        write_dataset(rows, blocks)
        bare = without_checksums(rows, Path(scratch) / "rows-bare")
        for name, options in (("loader_first_epoch", ["reopen"]), ("loader_later_epochs", [])):
            command = [sys.executable, "-m", "bench.micro.loader"]
            with (
                Contestant("with", [*command, rows, *options]) as ours,
                Contestant("without", [*command, bare, *options]) as plain,
            ):
                rounds = {"with": ours.start().epoch, "without": plain.start().epoch}
                measured = interleave(rounds, warmups + 1, repeats, lambda line, name=name: say(f"{name} {line}"))
            figures += _figures(name, measured)
        task = Path(scratch) / "tables"
        workloads.tables(task, context.quick, batches=100)
        first, later = _training(context, task, Path(scratch) / "tables-bare", warmups, repeats)
        figures += _figures("training_first_epoch", first) + _figures("training_later_epochs", later)
    notes = (*NOTES, f"loader: {blocks * BLOCK_ROWS:,} rows of 39 columns, in the page cache")
    return Result(tuple(figures), warmups, repeats, notes)


def without_checksums(folder: Path, to: Path) -> Path:
    """Copies a prepared dataset by hard links, with a manifest of format version 1, and returns the copy."""
    shutil.copytree(folder, to, copy_function=_link)
    strip_checksums(to / "manifest.json")
    return to


def strip_checksums(manifest: Path) -> None:
    """Makes the manifest of a prepared dataset one of format version 1, which had no checksums of blocks."""
    values = json.loads(manifest.read_text(encoding="utf-8"))
    for key in ("xxh3_128", "checksums"):
        values.pop(key, None)
    for split in values["splits"].values():
        split.pop("on_demand", None)
        for file in split["files"]:
            file.pop("checksums", None)
    manifest.unlink()  # it may be a link to a file that must not change
    manifest.write_text(json.dumps({**values, "format_version": 1}), encoding="utf-8")


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def _training(
    context: Context, task: Path, bare: Path, warmups: int, repeats: int
) -> tuple[dict[str, Samples], dict[str, Samples]]:
    """Returns the rows per second of first epochs and of second ones, with and without checksums."""
    command = [sys.executable, "-m", "bench.system.ours"]
    with Contestant("ziggurat", [*command, task]) as preparing:
        preparing.start()
    shutil.copytree(task, bare, copy_function=_link, ignore=shutil.ignore_patterns("prepared", "run-*"))
    without_checksums(task / "prepared", bare / "prepared")
    later: dict[str, list[float]] = {"with": [], "without": []}

    def measured(name: str, folder: Path) -> Callable[[], float]:
        def first_epoch() -> float:
            for run in folder.glob("run-*"):
                shutil.rmtree(run)
            with Contestant(name, [*command, folder]) as contestant:
                rate = contestant.start().epoch()
                later[name].append(contestant.epoch())
            return rate

        return first_epoch

    rounds = {"with": measured("with", task), "without": measured("without", bare)}
    first = interleave(rounds, warmups, repeats, lambda line: context.say(f"training, first epoch {line}"))
    return first, {name: tuple(values[warmups:]) for name, values in later.items()}


def _figures(name: str, measured: dict[str, Samples]) -> list[Figure]:
    cost = tuple(100 * (b / a - 1) for a, b in zip(measured["with"], measured["without"], strict=True))
    return [
        *(Figure(f"{name}_{which}", "rows/s", samples) for which, samples in measured.items()),
        Figure(f"{name}_cost", "%", cost),
    ]


CHECKSUMS = Benchmark(
    name="checksums",
    claim="Comparing all blocks with their checksums costs at most 3 % of an epoch.",
    targets={
        f"{name}_cost": Target(3, "at most")
        for name in ("loader_first_epoch", "loader_later_epochs", "training_first_epoch", "training_later_epochs")
    },
    depends_on=("bench/system/checksums.py", "bench/micro/loader.py", "bench/system/ours.py"),
    run=run,
)
