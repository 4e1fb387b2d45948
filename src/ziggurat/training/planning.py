"""An experiment's plan without training it: prepared data in, a plan with its prediction out."""

from __future__ import annotations

from pathlib import Path

from ziggurat.core.engine import check_engine
from ziggurat.core.errors import ConfigError
from ziggurat.core.progress import Progress
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.data.loader import check_shares
from ziggurat.planning import Planned, plan_tables
from ziggurat.planning.quantities import parse_bytes
from ziggurat.training.engine import pick_device
from ziggurat.training.experiment import Experiment
from ziggurat.training.machine import resolve_topology
from ziggurat.training.measured import with_measured


def plan(
    experiment: Experiment,
    *,
    hosts: int | None = None,
    devices: int | None = None,
    memory: int | str | None = None,
    prepared: str | Path | None = None,
    progress: Progress | None = None,
) -> Planned:
    """Who would hold which shard of which table, and what that costs; the data is prepared if it is not.

    Args:
        experiment: the config; ``planning`` says on what and how.
        hosts: machines, in place of ``planning.topology.hosts``.
        devices: on each host, in place of ``planning.topology.devices``.
        memory: of a device in bytes, or as in ``8GB``, in place of ``planning.topology.memory``.
        prepared: folder of the encoded dataset; default as in :func:`~ziggurat.training.api.prepare`.
        progress: where to show it.

    Raises:
        ConfigError: ``planning`` asks for what cannot be; there are no devices, or more than a batch has rows.
        NoFeasiblePlan: the devices have no room; the message says what would have.
    """
    from ziggurat.training.api import prepare

    check_engine()
    experiment.check()
    try:
        memory_bytes = parse_bytes(memory)
    except ValueError as error:
        raise ConfigError(f"memory: {error}") from None
    asked = experiment.planning.topology
    local = asked.device == "local"  # of other devices, this machine need have none
    kind = "cuda" if local and pick_device(experiment.training.device).type == "cuda" else "cpu"
    topology = resolve_topology(asked, kind, hosts=hosts, devices=devices, memory_bytes=memory_bytes)
    check_shares(experiment.training.batch_size, topology.world_size)
    dataset = prepare(experiment, prepared, progress)
    tables, statistics = experiment.layout(dataset.schema).tables, DatasetStatistics.load(dataset.folder)
    batch_size = -(-experiment.training.batch_size // topology.world_size)  # of a rank
    return plan_tables(tables, statistics, topology, with_measured(experiment.planning, topology.kind), batch_size)
