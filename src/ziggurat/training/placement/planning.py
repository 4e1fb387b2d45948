"""Plans an experiment without training it, compares planners, and trains them."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

from ziggurat.core.engine import check_engine
from ziggurat.core.errors import ConfigError, NoFeasiblePlan
from ziggurat.core.progress import Progress
from ziggurat.core.topology import DeviceKind
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.loader import check_batch_size
from ziggurat.data.encoded.manifest import ENCODERS
from ziggurat.embeddings.layout import Layout
from ziggurat.features.saved_transform import SavedTransform
from ziggurat.planning import PlanEstimate
from ziggurat.planning.autoshard.planner import AutoShard
from ziggurat.planning.comparison import Comparison
from ziggurat.planning.comparison import compare_planners as compare
from ziggurat.planning.planner import plan_problem
from ziggurat.planning.quantities import format_bytes, parse_bytes
from ziggurat.towers.requirements import obstacles
from ziggurat.towers.traffic import traffic_note
from ziggurat.towers.upstream import transforms
from ziggurat.training.experiment import Experiment, as_experiment
from ziggurat.training.placement import policy_training
from ziggurat.training.placement.cost_cache import cost_cache_folder, measured_cost_folder
from ziggurat.training.placement.plan_resolution import with_cache_slots
from ziggurat.training.placement.problem import PlanningInput, planning_input
from ziggurat.training.placement.topology import resolve_topology
from ziggurat.training.preparation import prepare
from ziggurat.training.process_group import pick_device


def plan(
    experiment: Experiment | str | Path,
    *,
    hosts: int | None = None,
    devices: int | None = None,
    memory: int | str | None = None,
    prepared: str | Path | None = None,
    progress: Progress | None = None,
) -> PlanEstimate:
    """Returns which device would hold which shard of which table, and the predicted cost; prepares the data if needed.

    Args:
        experiment: the config, or its YAML file; its ``planning`` section names the devices and the planner.
        hosts: number of machines, in place of ``planning.topology.hosts``.
        devices: number of devices per host, in place of ``planning.topology.devices``.
        memory: memory of a device in bytes, or as in ``8GB``, in place of ``planning.topology.memory``.
        prepared: folder of the encoded dataset; default as in :func:`~ziggurat.training.api.prepare`.
        progress: where to show progress.

    Raises:
        ConfigError: the ``planning`` section contradicts itself or the devices; there are no devices, or more devices
            than rows in a batch.
        NoFeasiblePlan: the devices have too little memory; the message says how much is enough.
    """
    experiment = as_experiment(experiment)
    planning, folder = _planning_input(experiment, hosts, devices, memory, prepared, progress)
    tables, kind = planning.problem.tables, planning.problem.topology.kind
    with _explained_disk_memory(experiment):
        estimate = plan_problem(planning.problem, planning.planner(progress))
    plan = with_cache_slots(experiment, tables, estimate.plan, kind, folder)
    added = [note for note in plan.notes if note not in estimate.plan.notes]
    topology = planning.problem.topology
    if experiment.towers is not None:
        layout = experiment.layout(Dataset(folder).schema)
        chosen = transforms(experiment.parallel, topology.hosts)
        batch_size, parallel = experiment.training.batch_size, experiment.parallel
        note = traffic_note(
            experiment.towers, layout, batch_size, parallel, estimate, transforms=chosen,
            blocked=_blocked(experiment, layout, topology.kind),
        )  # fmt: skip
        added += [] if note is None else [note]
    maps = SavedTransform.open(folder / ENCODERS).map_bytes()
    if maps:
        listed = ", ".join(f"{name} {format_bytes(size)}" for name, size in maps.items())
        added.append(
            f"maps of encoders, beside the tables, wherever raw rows are encoded: {format_bytes(sum(maps.values()))} "
            f"({listed})"
        )
    return replace(estimate, plan=plan, notes=(*estimate.notes, *added))


def _blocked(experiment: Experiment, layout: Layout, kind: DeviceKind) -> str | None:
    """Returns why an experiment with towers cannot use the tower transform; None if it can."""
    if kind != "cpu":
        return "it trains on CPUs so far"
    assert experiment.towers is not None
    sections = experiment.parallel, experiment.planning, experiment.embeddings, experiment.optimizer
    found = next(obstacles(experiment.towers, layout, *sections), None)
    return None if found is None else f"it {found[1]} ({found[0]})"


@contextlib.contextmanager
def _explained_disk_memory(experiment: Experiment) -> Generator[None]:
    """Adds to errors within the context that a device's memory includes the disk, if rows may be stored on a disk."""
    offload = experiment.planning.beyond_memory
    try:
        yield
    except NoFeasiblePlan as error:
        if offload is None:
            raise
        folder = offload.folder or Path("runs") / experiment.name
        raise NoFeasiblePlan(
            f"{error.problem}; that memory is planning.beyond_memory.memory, {format_bytes(offload.memory)}, plus the "
            f"free space on the disk of {folder}",
            f"free more space on that disk, or name another one (planning.beyond_memory.folder); {error.hint}",
        ) from None


def compare_planners(
    experiment: Experiment | str | Path,
    *,
    hosts: int | None = None,
    devices: int | None = None,
    memory: int | str | None = None,
    prepared: str | Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Returns the plans of all planners, judged by the same costs; that of the experiment's planner comes first.

    Arguments and errors are those of :func:`plan`.
    """
    experiment = as_experiment(experiment)
    planning, _ = _planning_input(experiment, hosts, devices, memory, prepared, progress)
    measured = measured_cost_folder(experiment.planning, planning.problem.topology.kind)
    return compare(planning.problem, planning.settings, progress, planning.time_parts, measured)


def train_planner(experiment: Experiment | str | Path, progress: Progress | None = None) -> Path:
    """Measures the cost of lookups on this machine, trains a policy for it, and returns the folder of both.

    Earlier measurements and training in that folder are continued
    (:mod:`~ziggurat.training.placement.policy_training`).

    Args:
        experiment: the config, or its YAML file; its planner is autoshard. The results are stored in the planner's
            ``learned`` folder; default: the folder of this machine in the user's cache, where autoshard finds them.
        progress: where to show progress.

    Raises:
        ConfigError: the planner is not autoshard, or plans for other devices than this machine's.
    """
    check_engine()
    experiment = as_experiment(experiment)
    planner = experiment.planning.planner
    if not planner.can_be_trained:
        raise ConfigError(
            f"planning.planner: {planner.title} has nothing to train", "use planning.planner: {name: autoshard}"
        )
    if experiment.planning.topology.device != "local" and planner.learned_folder is None:
        raise ConfigError(
            f"planning.topology.device: {experiment.planning.topology.device}, but only this machine can be measured",
            "leave device out, or name a folder for this machine's measurements: planning.planner.learned",
        )
    device = pick_device(experiment.training.device)
    folder = planner.learned_folder or cost_cache_folder(device)
    proposers = planner.proposers if isinstance(planner, AutoShard.Config) else 1
    policy_training.train_policy(folder, device, policy_training.ROUNDS, progress, proposers=proposers)
    return folder


def _planning_input(
    experiment: Experiment,
    hosts: int | None,
    devices: int | None,
    memory: int | str | None,
    prepared: str | Path | None,
    progress: Progress | None,
) -> tuple[PlanningInput, Path]:
    """Returns the planning problem with its planner, and the folder of the dataset, which is prepared if needed."""
    check_engine()
    experiment.check()
    try:
        memory_bytes = parse_bytes(memory)
    except ValueError as error:
        raise ConfigError(f"memory: {error}") from None
    config = experiment.planning.topology
    local = config.device == "local"  # this machine needs no devices of other kinds
    kind = "cuda" if local and pick_device(experiment.training.device).type == "cuda" else "cpu"
    topology = resolve_topology(config, kind, hosts=hosts, devices=devices, memory_bytes=memory_bytes)
    check_batch_size(experiment.training.batch_size, topology.world_size)
    dataset = prepare(experiment, folder=prepared, progress=progress)
    tables, run = experiment.layout(dataset.schema).tables, Path("runs") / experiment.name
    return planning_input(experiment, topology, tables, dataset.folder, run), dataset.folder
