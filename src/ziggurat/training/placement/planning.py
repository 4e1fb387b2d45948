"""An experiment's plan without training it: prepared data in, a plan with its prediction out."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

from ziggurat.core.engine import check_engine
from ziggurat.core.errors import ConfigError, NoFeasiblePlan
from ziggurat.core.progress import Progress
from ziggurat.data.encoded.loader import check_batch_size
from ziggurat.planning import PlanEstimate
from ziggurat.planning.comparison import Comparison
from ziggurat.planning.comparison import compare_planners as compare
from ziggurat.planning.planner import plan_problem
from ziggurat.planning.quantities import format_bytes, parse_bytes
from ziggurat.training.experiment import Experiment
from ziggurat.training.placement import policy_training
from ziggurat.training.placement.cost_cache import kernel_folder, measured_folder
from ziggurat.training.placement.plan_resolution import slots_for
from ziggurat.training.placement.problem import PlanningInput, planning_input
from ziggurat.training.placement.topology import resolve_topology
from ziggurat.training.preparation import prepare
from ziggurat.training.process_group import pick_device


def plan(
    experiment: Experiment,
    *,
    hosts: int | None = None,
    devices: int | None = None,
    memory: int | str | None = None,
    prepared: str | Path | None = None,
    progress: Progress | None = None,
) -> PlanEstimate:
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
    given, folder = _planning_input(experiment, hosts, devices, memory, prepared, progress)
    tables, kind = given.problem.tables, given.problem.topology.kind
    with _explained_disk_memory(experiment):
        planned = plan_problem(given.problem, given.planner(progress))
    plan = slots_for(experiment, tables, planned.plan, kind, folder)
    added = tuple(note for note in plan.notes if note not in planned.plan.notes)
    return replace(planned, plan=plan, notes=(*planned.notes, *added))


@contextlib.contextmanager
def _explained_disk_memory(experiment: Experiment) -> Generator[None]:
    """A device's memory is told of what it is made, where rows may lie on a disk."""
    beyond = experiment.planning.beyond_memory
    try:
        yield
    except NoFeasiblePlan as error:
        if beyond is None:
            raise
        folder = beyond.folder or Path("runs") / experiment.name
        raise NoFeasiblePlan(
            f"{error.problem}; that memory is planning.beyond_memory.memory, {format_bytes(beyond.memory)}, and what "
            f"the disk of {folder} has room for beside",
            f"more room on that disk, or another one (planning.beyond_memory.folder); {error.hint}",
        ) from None


def compare_planners(
    experiment: Experiment,
    *,
    hosts: int | None = None,
    devices: int | None = None,
    memory: int | str | None = None,
    prepared: str | Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """The plans that all planners make, judged by the same costs; the experiment's own comes first.

    Arguments and errors are those of :func:`plan`.
    """
    given, _ = _planning_input(experiment, hosts, devices, memory, prepared, progress)
    measured = measured_folder(experiment.planning, given.problem.topology.kind)
    return compare(given.problem, given.settings, progress, given.time_parts, measured)


def train_planner(experiment: Experiment, progress: Progress | None = None) -> Path:
    """Measure what look-ups cost on this machine, and train a policy for it; where autoshard then finds both.

    What was measured and trained earlier is gone on with (:mod:`~ziggurat.training.placement.policy_training`).

    Args:
        experiment: whose planner is autoshard; its ``learned`` folder gets them, or this machine's in the user's
            cache.
        progress: where to show it.

    Raises:
        ConfigError: the planner is another, or plans for other devices than this machine's.
    """
    check_engine()
    planner = experiment.planning.planner
    if not planner.can_be_trained:
        raise ConfigError(
            f"planning.planner: {planner.title} has nothing to train", "use planning.planner: {name: autoshard}"
        )
    if experiment.planning.topology.device != "local" and planner.learned_folder is None:
        raise ConfigError(
            f"planning.topology.device: {experiment.planning.topology.device}, and only this machine can be measured",
            "leave device out, or name a folder for what is measured here: planning.planner.learned",
        )
    device = pick_device(experiment.training.device)
    folder = planner.learned_folder or kernel_folder(device)
    policy_training.train_policy(folder, device, policy_training.ROUNDS, progress)
    return folder


def _planning_input(
    experiment: Experiment,
    hosts: int | None,
    devices: int | None,
    memory: int | str | None,
    prepared: str | Path | None,
    progress: Progress | None,
) -> tuple[PlanningInput, Path]:
    """Returns what is to be planned, and the folder of its dataset, which is prepared if it is not there."""
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
    check_batch_size(experiment.training.batch_size, topology.world_size)
    dataset = prepare(experiment, prepared, progress)
    tables, run = experiment.layout(dataset.schema).tables, Path("runs") / experiment.name
    return planning_input(experiment, topology, tables, dataset.folder, run), dataset.folder
