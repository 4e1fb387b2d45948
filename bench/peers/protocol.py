"""The protocol between a measured process and the benchmark, with one JSON object per line.

The process prints ``{"ready": {...}}`` when it has loaded its data and built its model. For each line ``epoch`` on its
input it trains one epoch and prints ``{"rows": n, "seconds": s, "loss": l}``. It exits on any other line and at the end
of its input. Between epochs it waits, so that several processes can take turns on one machine. This module imports only
the standard library.
"""

from __future__ import annotations

import json
import os
import sys
import time


class Rounds:
    """The measured process's side of the protocol.

    Creating it redirects everything that libraries print to standard error; standard output carries the protocol.
    """

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
        os.dup2(2, 1)
        self._start = 0.0

    def ready(self, threads: int = 1, versions: dict[str, str] | None = None) -> None:
        """Reports that data and model are ready, the number of threads, and the versions of the libraries used."""
        print(json.dumps({"ready": {"threads": threads, "versions": versions or {}}}), file=self._answers)

    def begin(self) -> None:
        """Waits for the next ``epoch`` and starts the clock; ends the process at the end of its input."""
        if sys.stdin.readline().strip() != "epoch":
            raise SystemExit(0)  # leaves a library's training loop
        self._start = time.perf_counter()

    def end(self, rows: int, loss: float) -> None:
        """Stops the clock and reports the epoch: the number of rows trained on and the mean training loss."""
        elapsed = time.perf_counter() - self._start
        print(json.dumps({"rows": rows, "seconds": elapsed, "loss": loss}), file=self._answers)
