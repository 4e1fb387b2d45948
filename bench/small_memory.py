"""Limits the memory of a command with a control group; the kernel kills a process that exceeds the limit."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Generator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup/memory")

_RELEASE_S = 30.0


def unavailable() -> str | None:
    """Returns why this machine cannot limit memory, or None if it can."""
    if not (ROOT / "memory.limit_in_bytes").exists():
        return "no memory controller of cgroups v1"
    return None if os.access(ROOT, os.W_OK) else f"no permission to write to {ROOT}"


@contextlib.contextmanager
def limited(size: int, name: str = "test") -> Generator[Path]:
    """Creates a control group limited to ``size`` bytes, swap included, and removes it at the end.

    A process joins the group when its id is written to the group's ``cgroup.procs``. At the end it must have ended; the
    kernel may need a moment to release what a killed one held.
    """
    group = ROOT / f"ziggurat-{name}-{os.getpid()}"
    group.mkdir()
    try:
        resize(group, size)
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    deadline = time.monotonic() + _RELEASE_S
    while True:
        try:
            group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def resize(group: Path, size: int) -> None:
    """Changes the limit of a group of :func:`limited`; the kernel evicts cached pages of files that exceed it."""
    (group / "memory.limit_in_bytes").write_text(str(size))
    with contextlib.suppress(OSError):  # without swap accounting there is nothing to limit
        (group / "memory.memsw.limit_in_bytes").write_text(str(size))
