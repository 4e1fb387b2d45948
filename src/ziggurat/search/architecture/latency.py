"""Milliseconds of parts, measured on this machine and kept in this user's cache, as costs of architectures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ziggurat.core.errors import ConfigError, RunFolderError
from ziggurat.core.progress import Progress
from ziggurat.core.sealed import declared, read_sealed_json, write_sealed_json
from ziggurat.core.untrusted import Damage
from ziggurat.interactions.block import Block
from ziggurat.search.architecture.space.cost import Recorder
from ziggurat.training.placement.cost_cache import cost_cache_folder, machine_name

LATENCY_FILE = "parts.json"
ROWS = 1024
"""Rows of the batch that is measured."""
_ROUNDS, _CALLS = 5, 3
_HINT = "measure them on this machine: `ziggurat doctor --architecture exp.yaml`, with --space as for the search"


@dataclass(frozen=True, slots=True)
class _Stored:
    machine: str
    milliseconds: dict[str, float]


class LatencyTable:
    """Measured milliseconds of one row, forward and backward.

    Args:
        milliseconds: key of a part -> its milliseconds for a row.
        where: the file, for messages.
    """

    def __init__(self, milliseconds: Mapping[str, float], where: Path) -> None:
        self._milliseconds, self._where = milliseconds, where

    def of(self, key: str, build: Callable[[], Block], shape: tuple[int, ...]) -> float:
        """Returns the milliseconds of a part.

        Raises:
            ConfigError: it was not measured; the message names it.
        """
        if key not in self._milliseconds:
            raise ConfigError(f"{self._where}: the part {key[:60]!r} was not measured", _HINT)
        return self._milliseconds[key]


def latency_file(device: torch.device) -> Path:
    """Returns the file with what was measured on this machine."""
    return cost_cache_folder(device) / LATENCY_FILE


def latency_table(device: torch.device) -> LatencyTable:
    """Returns what was measured on this machine.

    Raises:
        ConfigError: nothing was measured.
        RunFolderError: the file is damaged.
    """
    path = latency_file(device)
    known = _read(path)
    if not known:
        raise ConfigError(f"limits.milliseconds: {path} does not exist: no part was measured on this machine", _HINT)
    return LatencyTable(known, path)


def measure_parts(parts: Recorder, device: torch.device, progress: Progress, path: Path | None = None) -> Path:
    """Measures the parts that were not measured before, and adds them to the file; returns the file.

    Args:
        parts: the parts that architectures of a space may have.
        device: the device.
        progress: where to show progress; what was measured until an interruption is kept.
        path: the file; default: that of this machine.
    """
    path = path or latency_file(device)
    known = _read(path)
    missing = [key for key in parts.parts if key not in known]
    progress.start("measure parts", len(missing), "parts")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        for number, key in enumerate(missing, start=1):
            known[key] = _milliseconds(*parts.parts[key], device)
            progress.advance(number)
    finally:
        write_sealed_json(path, {"machine": machine_name(device), "milliseconds": known})
    progress.finish()
    return path


def _milliseconds(build: Callable[[], Block], shape: tuple[int, ...], device: torch.device) -> float:
    block = build().to(device)
    inputs = torch.randn(ROWS, *shape, device=device, requires_grad=True)

    def once() -> None:
        block(inputs).sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    once()
    rounds: list[float] = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        for _ in range(_CALLS):
            once()
        rounds.append((time.perf_counter() - started) / _CALLS)
    return 1e3 * statistics.median(rounds) / ROWS


def _read(path: Path) -> dict[str, float]:
    if not path.exists():
        return {}
    damage = Damage(RunFolderError, "delete the file, and measure again with `ziggurat doctor --architecture exp.yaml`")
    return dict(declared(_Stored, read_sealed_json(path, damage), path, damage).milliseconds)
