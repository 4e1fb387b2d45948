"""Which plan a world of ranks gets."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from ziggurat.core.errors import Misfit
from ziggurat.core.files import write_json
from ziggurat.core.plan import Plan
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.core.topology import DeviceKind, Topology
from ziggurat.embeddings.layout import Layout
from ziggurat.parallel.agreement import from_first
from ziggurat.parallel.world import World
from ziggurat.planning import plan_tables
from ziggurat.planning.constraints import check_plan
from ziggurat.training.experiment import Experiment
from ziggurat.training.machine import resolve_topology

PLAN_FILE = "plan.json"


def place(
    experiment: Experiment, layout: Layout, world: World, kind: DeviceKind, prepared: Path, folder: Path | None
) -> Plan:
    """The plan of a run: the one that lies in its folder if it is for this world, else a new one, left there.

    The first rank plans and tells the others: measured bandwidths differ from one measurement to the next.

    Args:
        experiment: whose ``planning`` section counts.
        layout: of its tables.
        world: that trains.
        kind: of each rank's device.
        prepared: folder of the encoded dataset, with its statistics.
        folder: of the run; None to plan anew and leave nothing.

    Raises:
        ConfigError: ``planning`` asks for what cannot be.
        NoFeasiblePlan: the devices have no room; the message says what would have.
    """

    def made() -> Plan:
        plan = Plan.single_device(table.name for table in layout.tables)
        if world.size > 1:
            topology = _topology(experiment, world, kind)
            batch_size = -(-experiment.training.batch_size // world.size)
            statistics = DatasetStatistics.load(prepared)
            lying = _lying(folder / PLAN_FILE, layout, topology) if folder is not None else None
            plan = lying or plan_tables(layout.tables, statistics, topology, experiment.planning, batch_size).plan
        if folder is not None:
            write_json(folder / PLAN_FILE, plan.to_json())
        return plan

    return from_first(made)


def kind_of(device: torch.device) -> DeviceKind:
    """What a plan calls a device of ours."""
    return "cuda" if device.type == "cuda" else "cpu"


def _topology(experiment: Experiment, world: World, kind: DeviceKind) -> Topology:
    return resolve_topology(experiment.planning.topology, kind, hosts=world.hosts, devices=world.local_size)


def _lying(path: Path, layout: Layout, topology: Topology) -> Plan | None:
    """The run's plan, if it is for these tables and this world."""
    try:
        plan = Plan.from_json(json.loads(path.read_text(encoding="utf-8")))
        check_plan(plan, layout.tables, topology)
    except (FileNotFoundError, Misfit):
        return None
    return plan
