"""Partitions the features of an experiment among towers: trains its flat model if needed, and measures how features
interact in it."""

from __future__ import annotations

import signal
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from ziggurat.core.engine import check_engine
from ziggurat.core.errors import ConfigError, RunFolderError, nearest
from ziggurat.core.progress import Progress
from ziggurat.core.statistics import has_statistics
from ziggurat.features.assemble import encoded_schema
from ziggurat.parallel.config import FlatLookup
from ziggurat.towers.config import Given, Strided, TowersConfig
from ziggurat.towers.partitioner.partition import Partition, partition_features
from ziggurat.towers.placed import units
from ziggurat.training.experiment import Experiment, as_experiment
from ziggurat.training.partitioning.loads import feature_loads
from ziggurat.training.partitioning.run_affinity import measure_affinity
from ziggurat.training.run_folder.run import Run, open_run
from ziggurat.training.train import train

SUFFIX = "-towers"
"""The ending of the name of an experiment with towers, so that its run folder is not that of the flat model."""


@dataclass(frozen=True, slots=True)
class Partitioned:
    """How a call of :func:`partition_towers` ended.

    Attributes:
        run: the run of the flat model.
        partition: the towers, with what they were made from; None if a signal stopped the training of the flat model.
        experiment: the experiment with these towers; None likewise.
        signal: that signal, if any; the state of the training is saved.
    """

    run: Run
    partition: Partition | None
    experiment: Experiment | None
    signal: signal.Signals | None = None


def partition_towers(
    experiment: Experiment | str | Path,
    towers: int,
    *,
    run: str | Path | Run | None = None,
    run_folder: str | Path | None = None,
    diverse: bool = False,
    seed: int = 0,
    prepared: str | Path | None = None,
    progress: Progress | None = None,
) -> Partitioned:
    """Divides the features of an experiment among towers by how they interact in its trained flat model.

    The flat model is the experiment without ``towers``. Its vectors of the validation rows say how much any two
    features interact (:class:`~ziggurat.towers.partitioner.affinity.Affinity`). The numbers of features of two towers
    differ by one at most, and loads are at most 1.1 times the mean where that is possible; features that share a table
    or a group stay together. The experiment that is returned is named ``NAME-towers``, and keeps the tower module of
    the config.

    Args:
        experiment: the config, or its YAML file.
        towers: the number of towers.
        run: a finished run of the flat model, or its folder; default: it is trained.
        run_folder: where it is trained; default ``runs/NAME``, or ``runs/NAME-flat`` if the config has towers.
        diverse: whether to put together the features that interact least.
        seed: decides the starting points of the search for towers; equal seeds give equal towers.
        prepared: folder of the encoded dataset; default as in :func:`~ziggurat.training.api.prepare`, or with ``run``,
            the dataset that it was trained on.
        progress: where to show progress.

    Raises:
        ConfigError: there are no tables, more towers than features (or groups of features that share a table), or a
            model without embeddings.
        RunFolderError: the run is of other features, has towers, or has no checkpoint.
        ZigguratError: as :func:`~ziggurat.training.api.train`.
    """
    check_engine()
    experiment = as_experiment(experiment)
    _check_count(experiment, towers)
    if run is None:
        parallel = experiment.parallel.model_copy(update={"embeddings": FlatLookup()})
        flat = experiment.model_copy(update={"towers": None, "parallel": parallel})
        name = experiment.name if experiment.towers is None else f"{experiment.name}-flat"
        folder = Path("runs") / name if run_folder is None else Path(run_folder)
        outcome = train(flat, folder, prepared=prepared, progress=progress)
        source = outcome.run
        if outcome.results is None:
            return Partitioned(source, None, None, outcome.signal)
    else:
        source = run if isinstance(run, Run) else open_run(run)
        _check_flat(source, experiment)
    dataset = source.dataset(prepared)
    layout = source.experiment.layout(dataset.schema)
    affinity_FF = measure_affinity(source, dataset, layout, progress=progress)
    features = layout.schema.sparse
    number_of = {feature: number for number, feature in enumerate(features)}
    loads = feature_loads(layout, dataset.statistics() if has_statistics(dataset.folder) else None)
    found = partition_features(
        features,
        affinity_FF,
        [[number_of[feature] for feature in unit] for unit in units(layout)],
        [loads[feature] for feature in features],
        towers,
        diverse=diverse,
        seed=seed,
    )
    return Partitioned(source, found, with_towers(experiment, found.towers))


def with_towers(experiment: Experiment, towers: tuple[tuple[str, ...], ...]) -> Experiment:
    """Returns an experiment with these towers, and the tower module that its config has; it is named ``NAME-towers``.

    Raises:
        ConfigError: the towers contradict another section; the message names the key.
    """
    partition = Given(towers=towers)
    section = experiment.towers
    changed = experiment.model_copy(
        update={
            "name": experiment.name.removesuffix(SUFFIX) + SUFFIX,
            "towers": TowersConfig(partition=partition)
            if section is None
            else section.model_copy(update={"partition": partition}),
        }
    )
    changed.check()
    return changed


def _check_count(experiment: Experiment, towers: int) -> None:
    """Raises ConfigError if the experiment has fewer features to divide than towers."""
    if towers < 1:
        raise ConfigError(f"towers: received {towers}", "set it to 2 or more")
    schema = encoded_schema(experiment.features, experiment.data.targets, defaultdict(lambda: 1))
    layout = experiment.layout(schema)
    if not layout.tables:
        raise ConfigError(
            f"{experiment.name}: no feature has an embedding table, so there is nothing to divide among towers",
            "declare categorical features, bags or sequences, or numeric ones with buckets",
        )
    tasks = sum(task.outputs for task in experiment.tasks())
    if experiment.model.embedding_dim(layout.dim + 1, tasks=tasks) != layout.dim + 1:
        raise ConfigError(
            f"model: {experiment.model.title} adds up table rows, which are parts of the logits and say nothing about "
            "interactions",
            "choose a model of embeddings, such as dlrm, or towers.partition: {name: strided, towers: T}",
        )
    Strided(towers=towers).check_count(units(layout))


def _check_flat(run: Run, experiment: Experiment) -> None:
    """Raises RunFolderError if the run is not one of the flat model of this experiment."""
    if run.experiment.towers is not None:
        raise RunFolderError(
            f"{run.folder}: was trained with towers, which change how features interact",
            "name a run of the flat model, without the section towers, or leave the run out to train it",
        )
    ours, theirs = ([feature.name for feature in each.features] for each in (experiment, run.experiment))
    for one, other, where in ((ours, theirs, "in the run"), (theirs, ours, "in the config")):
        missing = [name for name in one if name not in other]
        if missing:
            close = nearest(missing[0], other)
            raise RunFolderError(
                f"{run.folder}: was trained on other features than the config has: {missing[0]!r} is not {where}"
                + (f", but {close!r} is" if close else ""),
                "name a run of this config, or leave the run out to train it",
            )
