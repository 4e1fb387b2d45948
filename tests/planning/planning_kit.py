"""Tables, topologies and statistics for tests of planning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ziggurat.core.statistics import DatasetStatistics, TableStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import DeviceKind, Topology

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd", "lr": 0.1},
    "rowwise_adagrad": {"name": "rowwise_adagrad", "lr": 0.1, "eps": 1e-8, "weight_decay": 0.0},
    "adagrad": {"name": "adagrad", "lr": 0.1, "eps": 1e-8},
    "adam": {"name": "adam", "lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "rows": "touched"},
}
OPTIMIZERS["adam_all"] = {**OPTIMIZERS["adam"], "rows": "all"}


def table(name: str, rows: int, dim: int = 16, optimizer: str = "sgd", **others: Any) -> TableSpec:
    return TableSpec(name, rows, dim, others.pop("features", (name,)), "sum", OPTIMIZERS[optimizer], 0.01, **others)


def topology(
    hosts: int = 1,
    devices: int = 4,
    memory: float = 1e12,
    kind: DeviceKind = "cuda",
    lookup: float = 1e11,
    slow_memory: float = 0,
) -> Topology:
    """Bandwidths: look-ups 100 GB/s, slow memory a hundredth of it; within a host 10 GB/s, between hosts 4 GB/s."""
    slow_bandwidth = lookup / 100 if slow_memory else 0.0
    return Topology(hosts, devices, "test", kind, int(memory), lookup, 1e10, 4e9, (), int(slow_memory), slow_bandwidth)


def statistics(rows: int, accesses: Mapping[str, list[int]]) -> DatasetStatistics:
    """Returns the statistics that preparation would count over ``rows`` training rows."""
    return DatasetStatistics(
        rows={"train": rows, "validation": 0, "test": 0},
        label_rates={},
        tables={
            name: TableStatistics(name, len(counts), np.asarray(counts, np.int64)) for name, counts in accesses.items()
        },
    )
