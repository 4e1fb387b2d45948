"""The metrics that training writes as it runs: ``metrics.jsonl`` and TensorBoard."""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import atomic_file, explained_writes
from ziggurat.core.sealed import SEAL, declared
from ziggurat.core.untrusted import Damage, opened
from ziggurat.training.run_folder.run_files import METRICS_FILE, RunFiles, check_line

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_DAMAGED = Damage(
    RunFolderError,
    "restore the file; without a copy of it delete it: only the report's curves and a sweep's times are made from it",
)
_LINE_BYTES = 2**22
"""The most bytes of a line."""
_BEGINNING = b'{"split": "'
"""How every line begins."""


class MetricsLog:
    """Appends records to ``metrics.jsonl`` and scalars to TensorBoard.

    Args:
        files: the files of the run.
        step: the step that training continues from; later records, left by a killed run, are dropped, and so are
            records that are there twice.

    Attributes:
        counts: how many records of each split it has.

    Raises:
        RunFolderError: the records of the run so far are damaged.
    """

    def __init__(self, files: RunFiles, step: int) -> None:
        self._files, self._path = files, files.folder / METRICS_FILE
        self.counts = self._keep_until(step)
        board = files.folder / "tensorboard"
        if board.is_symlink():
            raise RunFolderError(f"{board}: is a symbolic link, which is not followed", "delete it")
        self._open_board = functools.partial(_open_board, str(board), step + 1)
        self._board: SummaryWriter | None = None
        self._file = self._path.open("a", encoding="utf-8")

    def write(self, split: str, step: int, epoch: float, figures: dict[str, float]) -> None:
        """Writes one record; figures that are not finite are written as null."""
        record: dict[str, Any] = {"split": split, "step": step, "epoch": round(epoch, 6)}
        record.update({name: value if math.isfinite(value) else None for name, value in figures.items()})
        with explained_writes(self._path):
            self._file.write(self._files.line(record))
            self._file.flush()
        self.counts[split] += 1
        if self._board is None:
            self._board = self._open_board()
        for name, value in figures.items():
            if math.isfinite(value):
                self._board.add_scalar(f"{split}/{name}", value, step)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def _keep_until(self, step: int) -> Counter[str]:
        """Drops the records after ``step``; returns how many of each split are left."""
        records = read_metrics_log(self._path, self._files)
        kept = list(_by_place(record for record in records if record["step"] <= step).values())
        if self._path.exists():
            with atomic_file(self._path) as temporary:
                temporary.write_text("".join(map(self._files.line, kept)), encoding="utf-8")
        return Counter(record["split"] for record in kept)


def _open_board(folder: str, purge_step: int) -> SummaryWriter:
    """Opens TensorBoard's files at the first record: the import takes half a second, which no first step waits for."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(folder, purge_step=purge_step)


class NoMetricsLog:
    """Writes nothing: the log of all ranks but the first, which writes the figures of all ranks."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    def write(self, split: str, step: int, epoch: float, figures: dict[str, float]) -> None:
        pass

    def __enter__(self) -> NoMetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def open_metrics_log(folder: Path, step: int, leads: bool) -> MetricsLog | NoMetricsLog:
    """Returns a log that writes for the rank that ``leads``, and one that writes nothing for the others."""
    return MetricsLog(RunFiles.open(folder), step) if leads else NoMetricsLog()


def read_metrics_log(path: Path, files: RunFiles | None = None) -> list[dict[str, Any]]:
    """Returns the records of a metrics.jsonl; a last line that a crash left incomplete is left out.

    Args:
        path: the file, which need not exist.
        files: the files of its run, whose id every line must then have. Without them, a line must have a checksum if
            the first one has.

    Raises:
        RunFolderError: a line is damaged, or belongs to another run.
    """
    try:
        with opened(path, _DAMAGED) as file:
            lines = list(iter(lambda: file.readline(_LINE_BYTES), b""))
    except FileNotFoundError:
        return []
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    required = files.has_checksums if files is not None else bool(lines) and f'"{SEAL}"'.encode() in lines[0]
    run_id = None if files is None else files.run_id
    return [_record(line, f"{path}: line {number}", run_id, required) for number, line in enumerate(lines, 1)]


def record_faults(records: Sequence[dict[str, Any]], written: int | None) -> str | None:
    """Returns how many records ``metrics.jsonl`` lacks or has twice, as a clause; None if it is as it was written.

    Args:
        records: the records that are there.
        written: how many the finished training wrote, if that is known.
    """
    different = len(_by_place(records))
    faults: list[str] = []
    if written is not None and different < written:
        faults.append(f"has {different:,} records, training wrote {written:,}")
    if different < len(records):
        faults.append(f"has {len(records) - different:,} records more than once")
    return f"{METRICS_FILE} {' and '.join(faults)}" if faults else None


def resume_note(path: Path, files: RunFiles, step: int, counts: Mapping[str, int] | None) -> str | None:
    """Returns what to tell the user about the records up to a checkpoint that a training resumes from; mostly nothing.

    A record after the checkpoint, or a last line that a kill cut short there, is written again, so nothing is lost.

    Args:
        path: the ``metrics.jsonl`` of the run.
        files: the files of the run.
        step: the step of the checkpoint.
        counts: how many records of each split there were when it was saved; None if it does not say so.

    Raises:
        RunFolderError: a line is damaged, or belongs to another run.
    """
    records = [record for record in read_metrics_log(path, files) if record["step"] <= step]
    different = _by_place(records)
    there = Counter(split for split, _ in different)
    lost = {split: count - there[split] for split, count in (counts or {}).items() if count > there[split]}
    faults: list[str] = []
    if lost:
        listed = ", ".join(f"{count:,} of {split!r}" for split, count in lost.items())
        faults.append(f"of the records up to step {step:,} {sum(lost.values()):,} are lost ({listed})")
    if len(different) < len(records):
        faults.append(f"{len(records) - len(different):,} records are there more than once, each is kept once")
    if not faults:
        return None
    return (
        f"{path}: is damaged: {'; '.join(faults)}. Training goes on as before, as only the report's curves and a "
        "sweep's times are made from it; to have them whole, stop, restore the file from a copy and train again"
    )


def foreign_end(path: Path) -> str | None:
    """Returns what is wrong with the bytes after the last line; None if there are none, or those of a killed training.

    Raises:
        RunFolderError: the file cannot be read.
    """
    try:
        with opened(path, _DAMAGED) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LINE_BYTES))
            end = file.read(_LINE_BYTES).rpartition(b"\n")[2]
    except FileNotFoundError:
        return None
    if b"\0" not in end and end.startswith(_BEGINNING[: len(end)]):
        return None
    return f"ends in {len(end):,} bytes that are no record"


def _by_place(records: Iterable[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """Returns the first record of each split and step."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for record in records:
        found.setdefault((record["split"], record["step"]), record)
    return found


def _record(line: bytes, where: str, run_id: str | None, required: bool) -> dict[str, Any]:
    """Returns the record in a line.

    Raises:
        RunFolderError: it is damaged or no record.
    """
    values = check_line(line, where, _DAMAGED, run_id, required)
    record = declared(dict[str, float | str | None], values, where, _DAMAGED)
    if not isinstance(values.get("split"), str) or not isinstance(values.get("step"), int):
        raise _DAMAGED.of(where, "has no split and step")
    if any(isinstance(value, str) for name, value in record.items() if name != "split"):
        raise _DAMAGED.of(where, "has a figure that is no number")
    return values
