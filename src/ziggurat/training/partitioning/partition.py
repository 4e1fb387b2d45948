"""Partitions the features of an experiment among towers: trains its flat model if needed, and measures how features
interact in it."""

from __future__ import annotations

import signal
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ziggurat.core.engine import check_engine
from ziggurat.core.errors import ConfigError, RunFolderError, nearest
from ziggurat.core.progress import Progress
from ziggurat.core.statistics import has_statistics
from ziggurat.embeddings.layout import Layout
from ziggurat.features.assemble import encoded_schema
from ziggurat.features.inputs.of_features import inputs_of
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
        run: a finished run of the flat model, or its folder; default: it is trained. Features may share other tables
            in it, or belong to other groups: those that share one in ``experiment`` stay together.
        run_folder: where it is trained; default ``runs/NAME``, or ``runs/NAME-flat`` if the config has towers.
        diverse: whether to put together the features that interact least.
        seed: decides the starting points of the search for towers; equal seeds give equal towers.
        prepared: folder of the encoded dataset; default as in :func:`~ziggurat.training.api.prepare`, or with ``run``,
            the dataset that it was trained on.
        progress: where to show progress.

    Raises:
        ConfigError: there are no tables, more towers than features (or groups of features that share a table), or a
            model without embeddings.
        RunFolderError: the run is of other features, or has tables of others, has towers, or has no checkpoint.
        ZigguratError: as :func:`~ziggurat.training.api.train`.
    """
    check_engine()
    experiment = as_experiment(experiment)
    own = _layout(experiment)
    _check_count(experiment, own, towers)
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
    trained = source.experiment.layout(dataset.schema)
    affinity_FF = measure_affinity(source, dataset, trained, progress=progress)
    features = own.schema.sparse  # the tables of the run may be shared by other features, and be in another order
    number_of = {feature: number for number, feature in enumerate(features)}
    places = [trained.schema.sparse.index(feature) for feature in features]
    loads = feature_loads(own, trained, dataset.statistics() if has_statistics(dataset.folder) else None)
    found = partition_features(
        features,
        affinity_FF[np.ix_(places, places)],
        [[number_of[feature] for feature in unit] for unit in units(own)],
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


def _layout(experiment: Experiment) -> Layout:
    """Returns the tables and fields of an experiment before its data are known; each table has one row."""
    return experiment.layout(encoded_schema(experiment.features, experiment.data.targets, defaultdict(lambda: 1)))


def _check_count(experiment: Experiment, layout: Layout, towers: int) -> None:
    """Raises ConfigError if the experiment has fewer features to divide than towers."""
    if towers < 1:
        raise ConfigError(f"towers: received {towers}", "set it to 2 or more")
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
    hint = "name a run of this config, or leave the run out to train it"
    ours, theirs = ([feature.name for feature in each.features] for each in (experiment, run.experiment))
    for one, other, where in ((ours, theirs, "in the run"), (theirs, ours, "in the config")):
        missing = [name for name in one if name not in other]
        if missing:
            close = nearest(missing[0], other)
            raise RunFolderError(
                f"{run.folder}: was trained on other features than the config has: {missing[0]!r} is not {where}"
                + (f", but {close!r} is" if close else ""),
                hint,
            )
    ours, theirs = (_inputs(each) for each in (experiment, run.experiment))
    for name in (*ours, *theirs):
        if ours.get(name, _NONE)[0] != theirs.get(name, _NONE)[0]:
            raise RunFolderError(
                f"{run.folder}: {name!r} is {theirs.get(name, _NONE)[1]} in the run, {ours.get(name, _NONE)[1]} in the "
                "config, and only features with a table in both can be measured and divided",
                f"declare it alike, or {hint}",
            )


_NONE = (False, "no feature")


def _inputs(experiment: Experiment) -> dict[str, tuple[bool, str]]:
    """Returns whether each input of the model has a table, and what it is, in words."""
    tables = _layout(experiment).table_of
    return {
        each.name: (each.name in tables, f"{each.kind} with{'' if each.name in tables else 'out'} a table")
        for each in inputs_of(experiment.features)
    }
