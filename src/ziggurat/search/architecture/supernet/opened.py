"""Opens a super-net on its devices: plan, lookup of all tables, and super-module."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

import torch

from ziggurat.core.errors import ConfigError
from ziggurat.core.plan import Plan
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.manifest import ENCODERS
from ziggurat.embeddings.layout import Layout
from ziggurat.features.saved_transform import SavedTransform
from ziggurat.parallel.agreement import on_first_rank
from ziggurat.parallel.config import DDP
from ziggurat.parallel.world import World
from ziggurat.planning.planner import plan_problem
from ziggurat.search.architecture.space.whole_space import WholeSpace
from ziggurat.search.architecture.supernet.hashed_features import (
    HashedFeatures,
    extended_experiment,
    extended_schema,
)
from ziggurat.search.architecture.supernet.super_net import SuperNetSettings, SuperRecommender
from ziggurat.training.experiment import Experiment
from ziggurat.training.placement.plan_resolution import device_kind
from ziggurat.training.placement.problem import planning_input
from ziggurat.training.placement.topology import resolve_topology
from ziggurat.training.recommender import assemble


def check_searchable(experiment: Experiment) -> None:
    """Raises ConfigError for settings that a super-net cannot be trained with."""
    problems = {
        "towers": (
            experiment.towers is not None,
            "leave the section out; towers are divided among features afterwards",
        ),
        "planning.beyond_memory": (experiment.planning.beyond_memory is not None, "leave it out for the search"),
        "training.readers": (
            bool(experiment.training.readers),
            "leave the readers out: the search reads the data itself",
        ),
        "training.warm_start": (
            experiment.training.warm_start is not None,
            "leave it out: a super-net has other weights",
        ),
        "checkpoints.store": (
            experiment.checkpoints.store is not None,
            "leave it out: a store holds the checkpoints of one run, and a search trains several",
        ),
        "parallel.dense": (
            not isinstance(experiment.parallel.dense, DDP),
            "use ddp for the search; what is found may be trained with any",
        ),
        "data.negatives": (experiment.data.negatives is not None, "give the log negatives of its own for the search"),
        "training.negative_rate": (experiment.training.negative_rate is not None, "leave it out for the search"),
    }
    for key, (is_set, hint) in problems.items():
        if is_set:
            raise ConfigError(f"{key}: cannot be combined with a search of architectures", hint)


@contextlib.contextmanager
def opened_super_net(
    space: WholeSpace, dataset: Dataset, folder: Path, device: torch.device
) -> Generator[SuperRecommender]:
    """Opens a freshly initialised super-net on the ranks of the current process group, which all call it.

    Args:
        space: the space.
        dataset: the prepared data.
        folder: a folder for what planning stores; nothing is kept there.
        device: this rank's device.

    Raises:
        NoFeasiblePlan: the devices have too little memory.
    """
    tables = space.tables.tables
    experiment = extended_experiment(space.experiment, tables)
    layout = experiment.layout(extended_schema(space.schema, tables))
    begins = experiment.training.start_at_base_rate is not False  # as a new run does
    changes = {"weight_average": None, "compile": False, "start_at_base_rate": begins}
    training = experiment.training.model_copy(update=changes)
    experiment = experiment.model_copy(update={"model": SuperNetSettings.of(space, layout), "training": training})
    plan = on_first_rank(lambda: _plan(experiment, layout, dataset, folder, device))
    labels = {}
    if experiment.starts_at_labels:
        labels = SavedTransform.open(dataset.folder / ENCODERS, dataset.checksum(ENCODERS)).labels
    found = assemble(experiment, layout, plan, device, labels=labels)
    called = None if found.dense is found.part else found.dense
    try:
        hashed = HashedFeatures(space.schema, tables)
        yield SuperRecommender(found.lookup, found.part, called, hashed)  # pyright: ignore[reportArgumentType]
    finally:
        found.lookup.close()


def _plan(experiment: Experiment, layout: Layout, dataset: Dataset, folder: Path, device: torch.device) -> Plan:
    """Returns a plan for the tables of all sizes; it is not stored, as plans of equal problems are equal."""
    world = World.current()
    if world.size == 1:
        return Plan.single_device(table.name for table in layout.tables)
    topology = resolve_topology(
        experiment.planning.topology, device_kind(device), hosts=world.hosts, devices=world.local_size
    )
    planning = planning_input(experiment, topology, layout.tables, dataset.folder, folder, measure_plans=False)
    return plan_problem(planning.problem, planning.planner(None)).plan
