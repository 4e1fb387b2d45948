from __future__ import annotations

from typing import get_args

import pytest

from ziggurat.core.errors import ConfigError
from ziggurat.core.topology import DEVICES, Topology, known_device
from ziggurat.planning.config import DeviceName


def test_ranks_are_numbered_host_by_host() -> None:
    topology = Topology(3, 2, "some", "cpu", 10, 1.0, 1.0, 6.0)
    assert topology.world_size == 6
    assert [topology.host(rank) for rank in range(6)] == [0, 0, 1, 1, 2, 2]
    assert topology.ranks_of(1) == (2, 3)
    assert topology.device_inter_bandwidth == 3.0


def test_an_unknown_device_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"unknown device 'a100-40'; did you mean 'a100-40gb'\? known: l4, v100, "):
        known_device("a100-40")
    with pytest.raises(ConfigError, match="unknown device 'tpu'; known: l4"):
        known_device("tpu")
    assert known_device("h100").memory_bytes == 80_000_000_000


def test_the_config_names_every_known_device() -> None:
    assert {*get_args(DeviceName)} == {"local", "cpu", *DEVICES}
