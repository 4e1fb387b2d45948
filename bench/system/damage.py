"""Damages every kind of file of a run, a prepared dataset, a staging folder and checkpoints, and uses what is left.

Two small runs are trained. Each case copies one folder of the first run and damages one file in the copy: it flips a
bit, writes zeros, truncates, empties or deletes it, or puts garbage in its place, or the second run's file. A whole
checkpoint is swapped for the second run's, too.
Then it does what a user would: reads the dataset, evaluates, predicts, restores, resumes. The case counts as

- *harmless* if the results are those of the undamaged copy,
- *named* if a named error of ours mentions the file, or if nothing failed and `ziggurat verify` mentions it. Of two
  intact files that do not belong together either may be the wrong one: then it is enough to name their folder,
- *unnamed* if such an error does not mention it,
- *silent* if results differ without an error,
- *traceback* if any other exception is raised.

Places and bits are drawn with a fixed seed, so that the cases are the same in each run.
"""

from __future__ import annotations

import collections
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.system.damaged_folders import Use, make_folders
from ziggurat.core.errors import ZigguratError
from ziggurat.verification.verify import verify

SEED = 35
QUICK_CASES = 12
KINDS = ("flipped", "zeroed", "truncated", "emptied", "deleted", "garbage", "swapped")
FLIPS, QUICK_FLIPS = 6, 1
"""Flipped bits in each file: the first two near the beginning, where headers are, the next near the end."""
ZERO_BYTES = 4096
OUTCOMES = ("named", "harmless", "unnamed", "silent", "traceback")


@dataclass(frozen=True, slots=True)
class Case:
    """A damage.

    Attributes:
        use: the folder and what is done with it.
        file: the file, or the folder that is swapped as a whole, relative to the folder.
        kind: one of :data:`KINDS`.
        number: number of the case among those of this file and kind.
    """

    use: Use
    file: str
    kind: str
    number: int

    def apply(self, folder: Path) -> bool:
        """Damages the file in ``folder``. Returns False if that changes no byte."""
        path = folder / self.file
        if path.is_dir():
            shutil.rmtree(path)
            shutil.copytree(self.use.other / self.file, path)
            return True
        content = path.read_bytes()
        draw = np.random.default_rng([SEED, *self.file.encode(), KINDS.index(self.kind), self.number])
        damaged = self._damaged(content, draw)
        if damaged == content:
            return False
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        return True

    def is_named(self, message: str, folder: Path) -> bool:
        """Returns whether a message mentions the damaged file, or for a swapped file its folder."""
        place = (folder / self.file).parent
        is_there = self.kind == "swapped" and (str(place) in message or str(folder) in message)
        return is_there or Path(self.file).name in message

    def _damaged(self, content: bytes, draw: np.random.Generator) -> bytes | None:
        """Returns the damaged content, None for a deleted file."""
        size = len(content)
        match self.kind:
            case "flipped":
                low, high = ((0, min(size, 256)), (0, size), (max(0, size - 256), size))[self.number % 3]
                position, bit = int(draw.integers(low, max(high, low + 1))), int(draw.integers(8))
                if position >= size:
                    return content
                return content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :]
            case "zeroed":
                start = int(draw.integers(max(1, size - ZERO_BYTES)))
                end = min(size, start + min(ZERO_BYTES, max(1, size // 4)))
                return content[:start] + bytes(end - start) + content[end:]
            case "truncated":
                return content[: int(draw.integers(1, max(2, size)))]
            case "emptied":
                return b""
            case "deleted":
                return None
            case "garbage":
                return draw.bytes(max(16, min(size, 10_000)))
            case _:
                other = self.use.other / self.file
                return other.read_bytes() if other.is_file() else content


def cases(use: Use, flips: int) -> Iterator[Case]:
    """Yields the damages of all files of a folder, and of those folders in it that are swapped as a whole."""
    for path in sorted(use.folder.glob(use.whole)) if use.whole else ():
        yield Case(use, path.relative_to(use.folder).as_posix(), "swapped", 0)
    for path in sorted(use.folder.rglob("*")):
        if path.is_file() and use.matters(name := path.relative_to(use.folder).as_posix()):
            for kind in KINDS:
                if not (kind == "deleted" and name in use.may_lack):
                    yield from (Case(use, name, kind, number) for number in range(flips if kind == "flipped" else 1))


def outcome(case: Case, expected: str, scratch: Path) -> tuple[str, str]:
    """Runs a case in a copy of its folder; returns the outcome and the error's first line, "" if no byte changed."""
    shutil.copytree(case.use.folder, scratch, symlinks=True)
    try:
        if not case.apply(scratch):
            return "", ""
        found = case.use.result(scratch)
        if found != expected:
            problems = [
                problem.problem for problem in verify(scratch).problems if case.is_named(problem.problem, scratch)
            ]
            if problems:
                return "named", problems[0].splitlines()[0]
    except ZigguratError as error:
        return ("named" if case.is_named(error.problem, scratch) else "unnamed"), error.problem.splitlines()[0]
    except Exception as error:  # noqa: BLE001 - any other exception is what the benchmark looks for
        return "traceback", f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return ("harmless" if found == expected else "silent"), ""


def run(context: Context) -> Result:
    counts: collections.Counter[str] = collections.Counter()
    by_folder: dict[str, collections.Counter[str]] = {}
    table: list[tuple[str, ...]] = [("folder", "file", "damage", "outcome", "error")]
    place = context.cache / "damage"
    shutil.rmtree(place, ignore_errors=True)
    context.say("training two runs")
    uses = make_folders(place, quick=context.quick)
    for use in uses:
        expected = use.result(_copy(use.folder, place / "undamaged"))
        all_cases = list(cases(use, QUICK_FLIPS if context.quick else FLIPS))
        chosen = all_cases[:: max(1, len(all_cases) // QUICK_CASES)] if context.quick else all_cases
        here = by_folder.setdefault(use.name, collections.Counter())
        for number, case in enumerate(chosen):
            found, error = outcome(case, expected, place / f"case-{use.name}-{number}")
            if not found:
                continue
            counts[found] += 1
            here[found] += 1
            if found not in ("named", "harmless"):
                table.append((use.name, case.file, case.kind, found, error[:160]))
                context.say(f"{found}: {use.name}, {case.file} {case.kind} {error[:160]}")
        context.say(f"{use.name}: " + ", ".join(f"{here[each]} {each}" for each in OUTCOMES))
    shutil.rmtree(place, ignore_errors=True)
    total = sum(counts.values())
    figures = [Figure("cases", "cases", (float(total),), "one damage of one file each")]
    figures += [Figure(each, "cases", (float(counts[each]),)) for each in OUTCOMES]
    notes = tuple(
        f"{name}: " + ", ".join(f"{here[each]} {each}" for each in OUTCOMES if here[each])
        for name, here in by_folder.items()
    )
    return Result(tuple(figures), 0, 1, notes, cases=tuple(table) if len(table) > 1 else ())


def _copy(folder: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target, symlinks=True)
    return target


DAMAGE = Benchmark(
    name="damage",
    claim="Damage that changes anything is named with its file: none is silent, and none ends in a traceback.",
    targets={
        "cases": Target(500.0),
        "silent": Target(0.0, "at most"),
        "traceback": Target(0.0, "at most"),
        "unnamed": Target(0.0, "at most"),
    },
    depends_on=("bench/system/damage.py", "bench/system/damaged_folders.py"),
    run=run,
)
