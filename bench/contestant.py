"""The benchmark's side of the protocol with a measured process (see `peers/protocol.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ziggurat.core.errors import EnvironmentMismatch

ROOT = Path(__file__).resolve().parents[1]


class Contestant:
    """A process that trains one epoch on request, and otherwise waits.

    Args:
        name: the name shown in messages.
        command: the command that starts it, in the repository's root.

    Attributes:
        threads: the number of threads on which it computes, as it reports.
        versions: the versions of the libraries that it uses.
        losses: the mean training loss of every epoch so far.

    Raises:
        EnvironmentMismatch: the process ended early; the message quotes the end of its error output.
    """

    def __init__(self, name: str, command: Sequence[str | Path]) -> None:
        self.name = name
        self.losses: list[float] = []
        self.threads = 1
        self.versions: dict[str, str] = {}
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            list(map(str, command)), cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip

    def start(self) -> Self:
        """Waits until the process has loaded its data and built its model."""
        ready = self._answer()["ready"]
        self.threads, self.versions = ready["threads"], ready["versions"]
        return self

    def epoch(self) -> float:
        """Trains one epoch and returns rows per second."""
        answer = self.ask("epoch")
        self.losses.append(answer["loss"])
        return answer["rows"] / answer["seconds"]

    def ask(self, what: str) -> dict[str, Any]:
        """Sends a line and returns the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._log.seek(0)
            tail = "\n".join(self._log.read().splitlines()[-15:])
            raise EnvironmentMismatch(f"{self.name} ended with status {status}:\n{tail}", "run its command by hand")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # the end of its input is its signal to leave
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
