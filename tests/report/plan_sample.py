"""Sample plans: one with every sharding, unusual table names and a full device; one with slow memory."""

from __future__ import annotations

import numpy as np
from report_sample import HOSTILE

from ziggurat.core.statistics import DatasetStatistics, TableStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning import PlanEstimate, plan_tables
from ziggurat.planning.config import PlanningConfig

ADAGRAD = {"name": "adagrad", "lr": 0.1, "eps": 1e-8}
NAMES = (HOSTILE, "物品编号很长的名字", "item [bold]", "a" * 200, "r")


def sample_plan(hosts: int = 2, devices: int = 4, memory: float = 6e9, tables: int = 24) -> PlanEstimate:
    specs = [
        TableSpec(NAMES[k] if k < len(NAMES) else f"c{k}", 40 * 4 ** (k % 9), 16 << k % 3, ("f",), "sum", ADAGRAD, 0.01)
        for k in range(tables)
    ]
    specs.append(TableSpec("large", 10_000_000, 32, ("f",), "sum", ADAGRAD, 0.01))
    constraints = {
        "c9": {"sharding": "row_wise"}, "c10": {"sharding": "table_row_wise"}, "c11": {"sharding": "grid"},
        "c12": {"sharding": "column_wise"}, "c13": {"sharding": "data_parallel"},
    }  # fmt: skip
    topology = Topology(hosts, devices, "h100", "cuda", int(memory), 3e12, 4.5e11, 1.25e9, ("something is assumed",))
    return plan_tables(specs, None, topology, PlanningConfig.model_validate({"tables": constraints}), 4096)


def tiered_plan() -> PlanEstimate:
    """Returns a plan of two tables on two devices, whose fast memory holds half of the rows."""
    specs = [TableSpec(f"t{k}", 5000, 16, ("f",), "sum", ADAGRAD, 0.01) for k in range(2)]
    counts = (1e6 / np.arange(1, 5001)).astype(np.int64)
    tables = {spec.name: TableStatistics(spec.name, 5000, counts) for spec in specs}
    counted = DatasetStatistics({"train": 10**6}, {}, tables=tables)
    topology = Topology(1, 2, "h100", "cuda", 850_000, 3e12, 4.5e11, 1.25e9, (), 10**6, 3e9)
    config = PlanningConfig.model_validate({"planner": {"name": "recshard"}, "reserve": 0})
    return plan_tables(specs, counted, topology, config, 1000)


def histories_plan() -> PlanEstimate:
    """Returns a plan of one table of sequences, whose rows are in three tiers, on two hosts of two devices."""
    spec = TableSpec("item", 5000, 16, ("seen",), "sum", ADAGRAD, 0.01, positions={"seen": 20})
    counts = (1e6 / np.arange(1, 5001)).astype(np.int64)
    counted = DatasetStatistics(
        {"train": int(counts.sum()) // 20}, {}, tables={"item": TableStatistics("item", 5000, counts)}
    )
    topology = Topology(2, 2, "lab", "cpu", 10**9, 1e10, 1.25e8, 1.25e7)
    return plan_tables([spec], counted, topology, PlanningConfig.model_validate({"planner": {"name": "flexshard"}}), 64)
