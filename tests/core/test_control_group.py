"""Limits of control groups of both versions are found for the groups that contain the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.small_memory import limited, unavailable
from ziggurat.core.control_group import cpu_quotas, memory_limits


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


def test_limits_of_all_containing_groups_are_found(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/self/cgroup": "0::/outer/inner",
            "sys/fs/cgroup/outer/inner/memory.max": "900",
            "sys/fs/cgroup/outer/inner/memory.current": "100",
            "sys/fs/cgroup/outer/memory.max": "500",
            "sys/fs/cgroup/outer/memory.current": "300",
            "sys/fs/cgroup/outer/cpu.max": "150000 100000",
            "sys/fs/cgroup/outer/inner/cpu.max": "max 100000",
            "sys/fs/cgroup/beside/memory.max": "1",
            "sys/fs/cgroup/beside/memory.current": "1",
        },
    )
    assert memory_limits(tmp_path) == [(900, 100), (500, 300)]
    assert cpu_quotas(tmp_path) == [1.5]


def test_version_1_has_a_folder_for_each_controller(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "900",  # a container sees only its own group
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "100",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    )
    assert memory_limits(tmp_path) == [(900, 100)]
    assert cpu_quotas(tmp_path) == [2.0]
    put(tmp_path, {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1"})
    assert cpu_quotas(tmp_path) == []


def test_without_groups_there_are_no_limits(tmp_path: Path) -> None:
    assert memory_limits(tmp_path) == []
    assert cpu_quotas(tmp_path) == []


@pytest.mark.skipif(unavailable() is not None, reason=f"no limit of memory here: {unavailable()}")
def test_a_real_group() -> None:
    size = 2**29
    program = "from ziggurat.core.control_group import memory_limits; print(min(memory_limits())[0])"
    with limited(size) as group:
        command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", sys.executable, "-c", program]
        assert int(subprocess.run(command, capture_output=True, check=True, text=True).stdout) == size
