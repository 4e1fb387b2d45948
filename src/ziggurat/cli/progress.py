"""Shows progress: a live bar on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from ziggurat.core.progress import Progress

_LINE_SECONDS = 10.0


@contextlib.contextmanager
def console_progress() -> Generator[Progress]:
    """Yields a Progress on stderr: bars if it is a terminal, else lines."""
    if sys.stderr.isatty():
        with RichProgress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=8),
            _Amount(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[figures]}"),
            console=Console(stderr=True),
            refresh_per_second=4,
        ) as bar:
            yield _Bars(bar)
    else:
        yield _Lines()


class _Amount(ProgressColumn):
    """Shows the amount done, the total and the rate."""

    def render(self, task: Task) -> Text:
        total = f"/{amount(task.total)}" if task.total else ""
        if task.stop_time is not None:
            rate = f", {task.elapsed:.1f} s"
        else:
            rate = f", {speed(task.speed)}" if task.speed else ""
        return Text(f"{amount(task.completed)}{total} {task.fields['unit']}{rate}", style="cyan")


class _Bars:
    def __init__(self, bar: RichProgress) -> None:
        self._bar = bar
        self._tasks: list[TaskID] = []

    def start(self, stage: str, total: float | None, unit: str) -> None:
        self._tasks.append(self._bar.add_task(stage, total=total, unit=unit, figures=""))

    def advance(self, done: float, **figures: float | str) -> None:
        self._bar.update(self._tasks[-1], completed=done, figures=_figures(figures))

    def finish(self, message: str = "") -> None:
        task = self._tasks.pop()
        if message:
            self._bar.update(task, figures=message)
        if self._bar.tasks[task].total is None:  # else its bar would keep pulsing
            self._bar.update(task, total=max(1, self._bar.tasks[task].completed))
        self._bar.stop_task(task)

    def note(self, message: str) -> None:
        self._bar.console.print(message, markup=False, highlight=False)


class _Lines:
    """Prints a line when a stage ends, and every ten seconds while it runs."""

    def __init__(self) -> None:
        self._stages: list[_Stage] = []

    def start(self, stage: str, total: float | None, unit: str) -> None:
        self._stages.append(_Stage(stage, total, unit))

    def advance(self, done: float, **figures: float | str) -> None:
        stage = self._stages[-1]
        stage.done, stage.figures = done, figures
        if time.monotonic() - stage.printed >= _LINE_SECONDS:
            self._print(stage, _eta(stage))

    def finish(self, message: str = "") -> None:
        stage = self._stages.pop()
        stage.figures = {name: figure for name, figure in stage.figures.items() if name not in message.split()}
        took = f"took {time.monotonic() - stage.started:.1f} s"
        self._print(stage, f"{message}, {took}" if message else took)

    def note(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    def _print(self, stage: _Stage, tail: str) -> None:
        stage.printed = time.monotonic()
        total = f"/{amount(stage.total)}" if stage.total else ""
        parts = (f"{stage.name}: {amount(stage.done)}{total} {stage.unit}", _figures(stage.figures), tail)
        print(", ".join(part for part in parts if part), file=sys.stderr, flush=True)


class _Stage:
    def __init__(self, name: str, total: float | None, unit: str) -> None:
        self.name, self.total, self.unit = name, total, unit
        self.done = 0.0
        self.figures: dict[str, float | str] = {}
        self.started = self.printed = time.monotonic()


def _eta(stage: _Stage) -> str:
    elapsed = time.monotonic() - stage.started
    rate = stage.done / elapsed if elapsed else 0.0
    left = f", {(stage.total - stage.done) / rate:.0f} s left" if stage.total and rate else ""
    return f"{speed(rate, stage.unit)}{left}"


def _figures(figures: dict[str, float | str]) -> str:
    return " ".join(f"{name} {_figure(value)}" for name, value in figures.items())


def _figure(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4f}"


def speed(per_second: float, unit: str = "") -> str:
    """Formats a rate; one below 1 a second is shown per minute or per hour: 0.03 settings/s as 1.8 settings/min."""
    for period, seconds in (("s", 1), ("min", 60), ("h", 3600)):
        rate = per_second * seconds
        if rate >= 1 or period == "h":
            shown = amount(rate) if rate >= 10 else f"{rate:.2g}"
            return f"{shown} {unit}/{period}".replace(" /", "/")
    raise AssertionError(per_second)


def amount(value: float | None) -> str:
    """Formats a number in at most six characters: 12,345 as 12.3k."""
    if value is None:
        return "?"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 10 * size:
            return f"{value / size:,.0f}{unit}" if value >= 100 * size else f"{value / size:.1f}{unit}"
    return f"{value:,.0f}"
