"""The provenance of a result: commit, machine, versions, and a digest of the sources."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.sources import sources_here

PROGRAMS = ("torch", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu", "polars", "pyarrow", "numpy", "ziggurat")
"""Distributions whose versions are stored with every result, if they are installed."""


def commit(root: Path) -> str | None:
    """Returns the full id of the checked-out commit, or None outside a git repository."""
    answer = _git(root, "rev-parse", "HEAD")
    return answer.strip() if answer is not None else None


def dirty_files(root: Path, paths: Sequence[str] = ()) -> list[str]:
    """Returns the files below ``paths`` (default: all) that differ from the commit or are not in it."""
    answer = _git(root, "status", "--porcelain", "--untracked-files=all", "--", *paths) or ""
    return [line[3:] for line in answer.splitlines()]


def digest(root: Path, depends_on: Sequence[str]) -> str:
    """Returns the SHA-256 of a benchmark's sources in the working directory (see :mod:`bench.sources`)."""
    return sources_here(root, depends_on).digest


def machine() -> dict[str, Any]:
    """Returns the processor model, the usable cores, the memory, the system and the load of this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_model(),
        "cores": cores,
        "memory_gib": round(memory_bytes / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the installed :data:`PROGRAMS`."""
    found = {"python": platform.python_version()}
    for program in PROGRAMS:
        try:
            found[program] = metadata.version(program)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _git(root: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return answer.stdout if answer.returncode == 0 else None
