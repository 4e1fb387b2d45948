"""A small machine: a command in a control group whose memory is limited, so that the kernel ends what outgrows it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup/memory")


def unavailable() -> str | None:
    """Why this machine cannot, or None."""
    if not (ROOT / "memory.limit_in_bytes").exists():
        return "no memory controller of cgroups v1"
    return None if os.access(ROOT, os.W_OK) else f"{ROOT} is not ours to write to"


@contextlib.contextmanager
def limited(size: int, name: str = "test") -> Generator[Path]:
    """A group of this many bytes, swap included; write a process id into its ``cgroup.procs`` to put it there."""
    group = ROOT / f"ziggurat-{name}-{os.getpid()}"
    group.mkdir()
    try:
        resize(group, size)
        yield group
    finally:
        group.rmdir()


def resize(group: Path, size: int) -> None:
    """Have a group of :func:`limited` be of this many bytes from now on; pages of files are taken away."""
    (group / "memory.limit_in_bytes").write_text(str(size))
    with contextlib.suppress(OSError):  # without swap accounting there is nothing to limit
        (group / "memory.memsw.limit_in_bytes").write_text(str(size))
