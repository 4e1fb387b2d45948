"""Topologies are resolved from the config, from data sheets, and by measuring this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ziggurat.core.errors import ConfigError
from ziggurat.core.topology import Topology
from ziggurat.planning.config import TopologyConfig
from ziggurat.training.placement import topology as topology_module
from ziggurat.training.placement.topology import memory_limit, resolve_topology


def config(**keys: Any) -> TopologyConfig:
    return TopologyConfig.model_validate(keys)


DECLARED = {"memory": "8GB", "lookup_bandwidth": "20GB/s", "intra_bandwidth": "2GB/s", "inter_bandwidth": "10Gbit/s"}


def test_declared_figures_are_used_without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_module, "_rate", lambda *_: pytest.fail("measured"))
    expected = Topology(2, 4, "cpu", "cpu", 8 * 10**9, 2e10, 2e9, 1.25e9)
    assert resolve_topology(config(device="cpu", hosts=2, devices=4, **DECLARED), "cuda") == expected
    local = resolve_topology(config(hosts=2, devices=4, **DECLARED), "cpu")
    assert (local.device, local.kind) == ("this machine's cpu", "cpu")
    assert (local.memory_bytes, local.lookup_bandwidth) == (8 * 10**9, 2e10)


def test_arguments_take_precedence_over_the_config() -> None:
    found = resolve_topology(
        config(device="h100", hosts=2, devices=8), "cpu", hosts=3, devices=4, memory_bytes=10**9
    )  # fmt: skip
    assert (found.hosts, found.devices, found.memory_bytes, found.kind) == (3, 4, 10**9, "cuda")


def test_data_sheets_and_assumptions_fill_in_missing_figures() -> None:
    one = resolve_topology(config(device="a100-40gb", devices=8), "cpu")
    assert (one.memory_bytes, one.lookup_bandwidth, one.intra_bandwidth) == (40 * 10**9, 1555e9, 300e9)
    assert one.assumed == ()
    two = resolve_topology(config(device="a100-40gb", hosts=2, devices=8), "cpu")
    assert two.inter_bandwidth == 1.25e9
    assert two.assumed == ("10 Gbit/s between hosts are assumed; declare planning.topology.inter_bandwidth",)
    assert resolve_topology(config(device="h100", memory="70GB"), "cpu").memory_bytes == 70 * 10**9


def test_a_cpu_of_another_machine_needs_every_figure() -> None:
    with pytest.raises(ConfigError, match=r"planning\.topology: .* lookup_bandwidth, intra_bandwidth must be given"):
        resolve_topology(config(device="cpu", memory="8GB"), "cpu")


def test_this_machine_is_measured() -> None:
    """Checks wide bounds only: from an old phone to more than any memory reaches."""
    found = resolve_topology(config(devices=2), "cpu")
    assert found.memory_bytes == memory_limit() // 2
    assert 1e7 < found.lookup_bandwidth < 1e13
    assert 1e7 < found.intra_bandwidth < 1e12


def test_the_memory_limit_is_the_machines_or_the_control_groups(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal:       16000 kB\nMemAvailable:    3000 kB\n")
    assert memory_limit(tmp_path) == 16_384_000
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path) == 16_384_000
    (group / "memory.max").write_text("5000000\n")
    (group / "memory.current").write_text("4000000\n")
    assert memory_limit(tmp_path) == 5_000_000


def test_slow_memory_needs_a_bandwidth_that_is_not_higher() -> None:
    found = resolve_topology(config(device="cpu", slow_memory="64GB", slow_bandwidth="3GB/s", **DECLARED), "cpu")
    assert (found.slow_memory_bytes, found.slow_bandwidth) == (64 * 10**9, 3e9)
    assert resolve_topology(config(device="cpu", **DECLARED), "cpu").slow_memory_bytes == 0
    with pytest.raises(ValueError, match="slow_memory is given without slow_bandwidth; give both or neither"):
        config(slow_memory="64GB")
    with pytest.raises(ValueError, match="slow_bandwidth is given without slow_memory"):
        config(slow_bandwidth="3GB/s")
    with pytest.raises(ConfigError, match=r"planning\.topology\.slow_bandwidth: 2\.1e\+10 bytes a second are more"):
        resolve_topology(config(device="cpu", slow_memory="64GB", slow_bandwidth="21GB/s", **DECLARED), "cpu")
