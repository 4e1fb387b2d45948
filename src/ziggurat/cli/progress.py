"""Progress on a terminal (a live bar) and off one (a plain line every few seconds)."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from ziggurat.core.progress import Progress

_LINE_SECONDS = 10.0


@contextlib.contextmanager
def console_progress() -> Generator[Progress]:
    """A Progress on stderr that fits what stderr is."""
    if sys.stderr.isatty():
        with RichProgress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
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
    """Done of total, and the rate."""

    def render(self, task: Task) -> Text:
        total = f"/{_count(task.total)}" if task.total else ""
        speed = f", {_count(task.speed)}/s" if task.speed else ""
        return Text(f"{_count(task.completed)}{total} {task.fields['unit']}{speed}", style="cyan")


class _Bars:
    def __init__(self, bar: RichProgress) -> None:
        self._bar = bar
        self._tasks: list[tuple[int, str]] = []

    def start(self, stage: str, total: float | None, unit: str) -> None:
        task = self._bar.add_task(stage, total=total, unit=unit, figures="")
        self._tasks.append((task, stage))

    def advance(self, done: float, **figures: float | str) -> None:
        from rich.progress import TaskID

        self._bar.update(TaskID(self._tasks[-1][0]), completed=done, figures=_figures(figures))

    def finish(self, message: str = "") -> None:
        from rich.progress import TaskID

        task, _ = self._tasks.pop()
        self._bar.update(TaskID(task), figures=message) if message else None
        self._bar.stop_task(TaskID(task))

    def note(self, message: str) -> None:
        self._bar.console.print(message, markup=False, highlight=False)


class _Lines:
    """One line when a stage begins and ends, and every ten seconds in between."""

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
        self._print(stage, message or f"took {time.monotonic() - stage.started:.1f} s")

    def note(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    def _print(self, stage: _Stage, tail: str) -> None:
        stage.printed = time.monotonic()
        total = f"/{_count(stage.total)}" if stage.total else ""
        parts = (f"{stage.name}: {_count(stage.done)}{total} {stage.unit}", _figures(stage.figures), tail)
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
    return f"{_count(rate)} {stage.unit}/s{left}"


def _figures(figures: dict[str, float | str]) -> str:
    return " ".join(f"{name} {_figure(value)}" for name, value in figures.items())


def _figure(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4f}"


def _count(value: float | None) -> str:
    if value is None:
        return "?"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 10 * size:
            return f"{value / size:,.0f}{unit}" if value >= 100 * size else f"{value / size:.1f}{unit}"
    return f"{value:,.0f}"
