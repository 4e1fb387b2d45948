"""The checkpoints of a run: ``step-00000100/`` each, the newest to resume from, the best to use."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from ziggurat.checkpoint.snapshot import STATE_FILE, Snapshot, load_snapshot, save_snapshot
from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import put_back, sweep, write_json

_NAME = re.compile(r"step-(\d{8,})")


class CheckpointFolder:
    """Checkpoints by step below ``root``. The best one and the newest ``keep`` stay; the others are deleted."""

    def __init__(self, root: Path, keep: int = 2) -> None:
        self.root = root
        self._keep = keep

    def path(self, step: int) -> Path:
        return self.root / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, ascending."""
        if not self.root.is_dir():
            return []
        put_back(self.root)
        found = [(_NAME.fullmatch(path.name), path) for path in self.root.iterdir()]
        return sorted(int(match[1]) for match, path in found if match and (path / STATE_FILE).is_file())

    def last(self) -> int | None:
        """The newest checkpoint's step, or None."""
        steps = self.steps()
        return steps[-1] if steps else None

    def best(self) -> dict[str, Any] | None:
        """``{"step", "metric", "value"}`` of the best checkpoint, or None."""
        path = self.root / "best.json"
        try:
            return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        except ValueError as error:
            raise RunFolderError(
                f"{path}: not valid JSON: {error}", "delete it: the newest checkpoint then counts"
            ) from None

    def save(self, step: int, snapshot: Snapshot) -> None:
        """Write the checkpoint of ``step`` and prune what is neither best nor among the newest."""
        save_snapshot(self.path(step), snapshot)
        self._prune()

    def mark_best(self, step: int, metric: str, value: float) -> None:
        """Record the checkpoint of ``step`` as the best so far."""
        assert self.path(step).is_dir(), step
        write_json(self.root / "best.json", {"step": step, "metric": metric, "value": value})
        self._prune()

    def load(self, which: str | int) -> Snapshot:
        """The checkpoint called ``best``, ``last``, or of a step.

        Raises:
            RunFolderError: there is none.
        """
        step = self.resolve(which)
        if step not in self.steps():
            mend = "name one of those steps"
            if which == "best":
                mend += f", or delete {self.root / 'best.json'}: the newest then counts as the best"
            raise RunFolderError(f"{self.root}: no checkpoint of step {step}; there are {self.steps()}", mend)
        return load_snapshot(self.path(step))

    def resolve(self, which: str | int) -> int:
        """The step that ``best``, ``last`` or a number stands for; ``best`` is the last one where none was evaluated.

        Raises:
            RunFolderError: no checkpoint yet, or a word that is none of those.
        """
        last = self.last()
        if last is None:
            raise RunFolderError(f"{self.root}: no checkpoint", "train first: `ziggurat train`")
        if which == "best":
            best = self.best()
            return last if best is None else int(best["step"])
        if which == "last":
            return last
        try:
            return int(which)
        except ValueError:
            raise RunFolderError(
                f"checkpoint {which!r} is neither 'best', 'last' nor a step", f"steps: {self.steps()}"
            ) from None

    def _prune(self) -> None:
        steps = self.steps()
        best = self.best()
        kept = {*steps[-self._keep :], *([int(best["step"])] if best else [])}
        for step in steps:
            if step not in kept:
                shutil.rmtree(self.path(step))
        sweep(self.root)
