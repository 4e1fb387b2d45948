"""Memory, CPU and thread limits that Linux control groups (version 1 or 2) set for this process, as in a container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def memory_limits(root: Path = ROOT) -> list[tuple[int, int]]:
    """Returns (limit, used) in bytes of every group that contains this process and has a limit."""
    found: list[tuple[int, int]] = []
    for group, is_v2 in _groups("memory", root):
        names = ("memory.max", "memory.current") if is_v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (_read(group / name) for name in names)
        if limit.isdigit() and used.isdigit():
            found.append((int(limit), int(used)))
    return found


def available_bytes(root: Path = ROOT) -> int:
    """Returns the memory that this process may still allocate: what the machine has available, or its groups allow."""
    return min([_machine_bytes(root), *(limit - used for limit, used in memory_limits(root))])


def most_bytes(root: Path = ROOT) -> int:
    """Returns the memory that no allocation can exceed, even if its groups gave up all cached files."""
    return min([_machine_bytes(root), *(limit for limit, _ in memory_limits(root))])


def _machine_bytes(root: Path) -> int:
    """Returns the memory that the machine has available."""
    meminfo = {
        line.partition(":")[0]: int(line.split()[1]) * 1024
        for line in (root / "proc/meminfo").read_text().splitlines()
        if line.endswith(" kB")
    }
    return meminfo["MemAvailable"]


def cpu_quotas(root: Path = ROOT) -> list[float]:
    """Returns the number of CPUs that each group with a quota may use, for the groups that contain this process."""
    found: list[float] = []
    for group, is_v2 in _groups("cpu", root):
        names = ("cpu.max",) if is_v2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        fields = " ".join(_read(group / name) for name in names).split()
        if len(fields) == 2 and fields[0].isdigit():  # otherwise the quota is "max", -1 or missing
            quota_us, period_us = fields
            found.append(int(quota_us) / int(period_us))
    return found


def thread_limits(root: Path = ROOT) -> list[tuple[int, int]]:
    """Returns (limit, used) in threads of every group that contains this process and has a limit."""
    found: list[tuple[int, int]] = []
    for group, _ in _groups("pids", root):
        limit, used = _read(group / "pids.max"), _read(group / "pids.current")
        if limit.isdigit() and used.isdigit():
            found.append((int(limit), int(used)))
    return found


def _groups(controller: str, root: Path) -> Iterator[tuple[Path, bool]]:
    """Yields (folder, whether it is of version 2) of the group of this process and of the groups that contain it.

    In a container the process's own group is mounted at the root, and the path that the kernel reports may not exist.
    So all parents of the path are tried.
    """
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        is_v2 = not controllers
        if is_v2 or controller in controllers.split(","):
            group = PurePosixPath(path.lstrip("/"))
            for folder in (group, *group.parents):
                yield (mount if is_v2 else mount / controller) / folder, is_v2


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
