"""The metrics that training writes as it runs: ``metrics.jsonl`` and TensorBoard."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from ziggurat.core.files import atomic_file, explained_writes


class MetricsLog:
    """Appends records to ``metrics.jsonl`` and scalars to TensorBoard.

    Args:
        folder: the run folder.
        step: the step that training continues from; later records, left by a killed run, are dropped.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # half a second, which other ranks and readers need not wait

        self._path = folder / "metrics.jsonl"
        self._keep_until(step)
        self._file = self._path.open("a", encoding="utf-8")
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, split: str, step: int, epoch: float, figures: dict[str, float]) -> None:
        """Writes one record; figures that are not finite are written as null."""
        record: dict[str, Any] = {"split": split, "step": step, "epoch": round(epoch, 6)}
        record.update({name: value if math.isfinite(value) else None for name, value in figures.items()})
        with explained_writes(self._path):
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        for name, value in figures.items():
            if math.isfinite(value):
                self._board.add_scalar(f"{split}/{name}", value, step)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._board.close()

    def _keep_until(self, step: int) -> None:
        if not self._path.exists():
            return
        records = read_metrics_log(self._path)
        kept = [record for record in records if record["step"] <= step]
        with atomic_file(self._path) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")


class NoMetricsLog:
    """Writes nothing: the log of all ranks but the first, which writes the figures of all ranks."""

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
    return MetricsLog(folder, step) if leads else NoMetricsLog()


def read_metrics_log(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a metrics.jsonl; a last line truncated by a crash is left out."""
    records: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                records.append(cast("dict[str, Any]", json.loads(line)))
            except ValueError:
                break
    return records
