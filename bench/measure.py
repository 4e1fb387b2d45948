"""Measurements on a shared, noisy machine: warm-up, repetition, interleaved rounds; peak memory from the kernel.

Ratios are taken within a round, never between separate sessions. In every round all contestants run one after another,
in rotating order. Other work that occupies the machine for a minute then slows all of them, and the median of the
per-round ratios is hardly affected.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ziggurat.core.errors import EnvironmentMismatch

_LAUNCHER = Path(__file__).with_name("launcher.py")

Samples = tuple[float, ...]


def repeat(measured: Callable[[], float], warmups: int, repeats: int) -> Samples:
    """Calls ``measured`` ``warmups + repeats`` times and returns the values of the last ``repeats`` calls."""
    for _ in range(warmups):
        measured()
    return tuple(measured() for _ in range(repeats))


def interleave(
    contestants: Mapping[str, Callable[[], float]],
    warmups: int,
    repeats: int,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Samples]:
    """Measures every contestant once per round, in rotating order.

    Args:
        contestants: name -> a function that measures one round (a rate, a time, ...).
        warmups: rounds whose values are discarded.
        repeats: measured rounds; sample i of every contestant comes from the same round.
        say: called with a line for every value.
    """
    names = list(contestants)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warmups + repeats):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            value = contestants[name]()
            if turn >= warmups:
                samples[name].append(value)
            label = f"round {turn - warmups + 1}/{repeats}" if turn >= warmups else f"warm-up {turn + 1}/{warmups}"
            say(f"{label}: {name} {value:,.4g}")
    return {name: tuple(values) for name, values in samples.items()}


def ratios(numerators: Samples, denominators: Samples) -> Samples:
    """Returns the ratio of each round; what slows a whole round cancels."""
    return tuple(a / b for a, b in zip(numerators, denominators, strict=True))


def seconds(work: Callable[[], object]) -> float:
    """Returns the wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class ChildRun:
    """The kernel's measurements of a child process that ended.

    Attributes:
        seconds: wall time from spawn to exit.
        cpu_seconds: user and system time of the child and the children it waited for.
        peak_bytes: the largest resident set of the child or of any single process it waited for (``ru_maxrss``).
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def run_child(command: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None) -> ChildRun:
    """Runs ``command`` to its end, discards its output, and measures it with ``os.wait4``.

    Linux keeps the high-water mark of a process across ``exec``, so a child spawned by a large parent would report its
    parent's memory. Therefore a small launcher process spawns the command and times it.

    Raises:
        EnvironmentMismatch: the command failed; the message quotes the end of its error output.
    """
    answer, out = os.pipe()
    arguments = [sys.executable, "-I", "-S", str(_LAUNCHER), str(out), *map(str, command)]
    process = subprocess.Popen(
        arguments, cwd=cwd, env=None if env is None else dict(env), pass_fds=(out,), stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    os.close(out)
    with process:
        _, errors = process.communicate()
    with os.fdopen(answer) as pipe:
        report = pipe.read()
    if process.returncode != 0:
        tail = "\n".join(errors.splitlines()[-15:])
        raise EnvironmentMismatch(
            f"{' '.join(map(str, command))} ended with status {process.returncode}:\n{tail}", "run it by hand"
        )
    return ChildRun(**json.loads(report))
