"""Prepares the encoded dataset of an experiment, and names its default folder."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

from ziggurat.core.errors import DataError
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.statistics import load_features
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.manifest import MANIFEST_FILE, read_manifest
from ziggurat.data.readers.frame.reader import Frame
from ziggurat.features.preparation.leaks import leaks
from ziggurat.features.preparation.prepare import QUARANTINE, dataset_fingerprint
from ziggurat.features.preparation.prepare import prepare as prepare_dataset
from ziggurat.features.preparation.ray_cluster import RayCluster
from ziggurat.training.experiment import Experiment, as_experiment


def prepare(
    experiment: Experiment | str | Path,
    rows: Any = None,
    folder: str | Path | None = None,
    *,
    progress: Progress | None = None,
    ray: str | None = None,
) -> Dataset:
    """Returns the encoded dataset of an experiment, and prepares it first if it does not exist.

    Rows that were set aside, and what seems to tell the label (:mod:`~ziggurat.features.preparation.leaks`), are noted
    in either case.

    Args:
        experiment: the experiment, or its YAML file; its ``data`` and ``features`` sections decide the dataset.
        rows: the rows, if they are in memory: a polars or pandas DataFrame, a pyarrow Table, a Hugging Face dataset, a
            dictionary of columns, a list of dictionaries, or anything with the Arrow C stream interface. Default: those
            of the experiment's files. A path is taken for ``folder``.
        folder: folder of the dataset; default ``prepared/NAME-xxxxxxxx``, which ends in a digest of these sections and
            the raw files.
        progress: where to show progress.
        ray: address of the Ray cluster whose workers prepare it, or ``local``; default: threads of this process.

    Raises:
        DataError, ConfigError, FeatureError: bad input, named by file, line, column and value.
        TypeError: two folders are given.
        EnvironmentMismatch, WorkersLost: Ray is not installed or not reachable; workers die repeatedly.
    """
    experiment = as_experiment(experiment)
    if isinstance(rows, str | Path):
        if folder is not None:
            raise TypeError(
                "the dataset's folder is given twice; name what follows it: prepare(experiment, folder, progress=…)"
            )
        rows, folder = None, rows
    frame = None if rows is None else Frame.of(rows)
    chosen = prepared_folder(experiment, frame) if folder is None else Path(folder)
    progress = progress or Silent()
    cluster = None if ray is None else RayCluster(ray)
    dataset = Dataset(prepare_dataset(experiment.data, experiment.features, chosen, progress, cluster, frame))
    rejected = dataset.quarantined_rows
    if rejected:
        progress.note(f"{rejected:,} row{'s' * (rejected != 1)} set aside in {dataset.folder / QUARANTINE}")
    for warning in leaks(experiment.features, experiment.data.labels, load_features(dataset.folder)):
        progress.note(warning)
    return dataset


def prepared_folder(experiment: Experiment, frame: Frame | None = None) -> Path:
    """Returns the default folder of an experiment's encoded dataset; reads only the heads of the raw files.

    Where an encoder continues one that is not there any more, it is the folder of the dataset that was prepared then.

    Raises:
        ConfigError, DataError: as in :func:`prepare`, as far as the config and the heads of the files show.
    """
    try:
        digest = dataset_fingerprint(experiment.data, experiment.features, frame)[:8]
    except DataError:
        prepared = _prepared_before(experiment, frame)
        if prepared is None:
            raise
        return prepared
    return Path("prepared") / f"{experiment.name}-{digest}"


def _prepared_before(experiment: Experiment, frame: Frame | None) -> Path | None:
    """Returns the folder of the dataset of an experiment that was prepared while the encoders that it continues were
    there; None if there is none, or it continues none."""
    for manifest in sorted(Path("prepared").glob(f"{glob.escape(experiment.name)}-????????/{MANIFEST_FILE}")):
        stored = read_manifest(manifest.parent)[1]
        if stored.kept and stored.fingerprint == dataset_fingerprint(
            experiment.data, experiment.features, frame, stored.kept
        ):
            return manifest.parent
    return None
