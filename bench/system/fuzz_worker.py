"""Takes a number of drawn or damaged logs through the steps, in a process of its own, and prints what became of them.

A fault of a native library ends the process; the file that it was working on stays in the folder.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from bench.system.fuzz_files import harmed, intact
from bench.system.fuzz_steps import OUTPUTS, Taken, take
from bench.system.fuzz_texts import EXAMPLES, LABEL, Drawn

_SHOWN = 300


def examine(drawn: Drawn, folder: Path) -> Taken:
    """Takes one log through the steps in an empty ``folder``; an error that is not the package's own is a fault."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = folder / drawn.name
    path.write_bytes(drawn.data)
    choice = int(hashlib.sha256(drawn.data).hexdigest(), 16)
    try:
        return take(
            path,
            folder,
            None if choice % 3 == 0 or path.suffix == ".libsvm" else LABEL,
            drawn.columns,
            OUTPUTS[choice % len(OUTPUTS)],
        )
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (a panic of a Rust library is no Exception)
        place = "".join(traceback.format_tb(error.__traceback__)[-2:])
        return Taken("crash", faults=(f"{type(error).__name__}: {str(error)[:_SHOWN]}\n{place}",))


def texts(count: int, number: int, folder: Path) -> dict[str, Any]:
    """Examines ``count`` drawn texts; returns the counts of what became of them, and the faults."""
    report = _Report(folder)

    @seed(number)
    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(EXAMPLES)
    def run(drawn: Drawn) -> None:
        report.add(drawn)

    run()
    return report.values()


def files(count: int, number: int, folder: Path) -> dict[str, Any]:
    """Examines ``count`` damaged files, each format in turn."""
    report, formats = _Report(folder), intact()
    for place in range(count):
        drawn = formats[place % len(formats)]
        report.add(Drawn(drawn.name, harmed(drawn.data, number * count + place)))
    return report.values()


class _Report:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counts: Counter[str] = Counter()
        self._faults: list[dict[str, str]] = []

    def add(self, drawn: Drawn) -> None:
        taken = examine(drawn, self._folder / "case")
        self._counts[f"{taken.stage}{' refused' if taken.refused else ''}"] += 1
        for fault in taken.faults:
            self._faults.append({"fault": fault, "name": drawn.name, "data": repr(drawn.data[:_SHOWN])})

    def values(self) -> dict[str, Any]:
        return {"counts": dict(self._counts), "faults": self._faults[:50], "fault_count": len(self._faults)}


if __name__ == "__main__":
    kind, amount, first, place = sys.argv[1:]
    made = (texts if kind == "texts" else files)(int(amount), int(first), Path(place))
    print(json.dumps(made))
