"""What the control groups of this process leave it, version 1 or 2: a container's limits, or an administrator's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def memory_limits(root: Path = ROOT) -> list[tuple[int, int]]:
    """(limit, used) in bytes of every group around this process that has a limit."""
    found: list[tuple[int, int]] = []
    for group, new in _groups("memory", root):
        names = ("memory.max", "memory.current") if new else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (_read(group / name) for name in names)
        if limit.isdigit() and used.isdigit():
            found.append((int(limit), int(used)))
    return found


def available_bytes(root: Path = ROOT) -> int:
    """What this process may still take: the machine's available memory, or what its control groups leave if less."""
    meminfo = {
        line.partition(":")[0]: int(line.split()[1]) * 1024
        for line in (root / "proc/meminfo").read_text().splitlines()
        if line.endswith(" kB")
    }
    return min([meminfo["MemAvailable"], *(limit - used for limit, used in memory_limits(root))])


def cpu_quotas(root: Path = ROOT) -> list[float]:
    """CPUs that each group around this process that has a quota may use at a time."""
    found: list[float] = []
    for group, new in _groups("cpu", root):
        names = ("cpu.max",) if new else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        told = " ".join(_read(group / name) for name in names).split()
        if len(told) == 2 and told[0].isdigit():  # else "max", -1 or nothing
            found.append(int(told[0]) / int(told[1]))
    return found


def _groups(controller: str, root: Path) -> Iterator[tuple[Path, bool]]:
    """(folder, whether of version 2) of the group that this process is in, and of those around it.

    A container sees its own group where the root's is elsewhere, and may be told a path that it does not see.
    """
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        new = not controllers
        if new or controller in controllers.split(","):
            inner = PurePosixPath(path.lstrip("/"))
            for folder in (inner, *inner.parents):
                yield (mount if new else mount / controller) / folder, new


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
