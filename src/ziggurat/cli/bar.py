"""The Progress that draws a bar on standard error, or prints one line a stage where that is no terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining
from rich.text import Text


class Bar:
    """``with Bar() as progress: work(progress)``; the bar disappears, a line for each finished stage stays."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.display = Progress(
            TextColumn("{task.description}"), BarColumn(), _Done(), TimeElapsedColumn(), Remaining(),
            console=self.console, transient=True, disable=not self.console.is_terminal,
        )  # fmt: skip
        self.task: TaskID | None = None
        self.stage = ""

    def start(self, stage: str, total: float | None, unit: str) -> None:
        self.stage = stage
        self.task = self.display.add_task(stage, total=total, unit=unit, figures="")

    def advance(self, done: float, **figures: float | str) -> None:
        if self.task is not None:
            shown = "  ".join(f"{key} {_short(value)}" for key, value in figures.items())
            self.display.update(self.task, completed=done, figures=shown)

    def finish(self, message: str = "") -> None:
        if self.task is not None:
            self.display.remove_task(self.task)
            self.task = None
        self.note(f"{self.stage}: {message or 'done'}")

    def note(self, message: str) -> None:
        self.console.print(message, highlight=False, markup=False)

    def __enter__(self) -> Bar:
        self.display.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.display.stop()


class _Done(ProgressColumn):
    """``1,200 of 5,000 rows  figures``; nothing of it where the total is unknown."""

    def render(self, task: Task) -> Text:
        unit, figures = str(task.fields["unit"]), str(task.fields["figures"])
        total = f" of {task.total:,.0f}" if task.total is not None else ""
        count = f"{task.completed:,.0f}{total} {unit}".rstrip() if task.completed or total else ""
        return Text(f"{count}  {figures}".rstrip())


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
