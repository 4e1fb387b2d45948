"""The encoded dataset of an experiment: where it is by default, and how it comes to be there."""

from __future__ import annotations

from pathlib import Path

from ziggurat.core.progress import Progress, Silent
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.features.preparation.prepare import dataset_fingerprint
from ziggurat.features.preparation.prepare import prepare as prepare_dataset
from ziggurat.features.preparation.ray_cluster import RayCluster
from ziggurat.training.experiment import Experiment


def prepare(
    experiment: Experiment,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    *,
    ray: str | None = None,
) -> Dataset:
    """The encoded dataset of an experiment; made if it is not there.

    Args:
        experiment: whose ``data`` and ``features`` sections count.
        folder: where to; default ``prepared/NAME-xxxxxxxx``, the last part telling configs and raw files apart.
        progress: where to show it.
        ray: address of the Ray cluster whose workers make it, or ``local``; default: threads of this process.

    Raises:
        DataError, ConfigError, FeatureError: bad input, named by file, line, column and value.
        EnvironmentMismatch, WorkersLost: Ray is not installed or not there; workers die again and again.
    """
    chosen = prepared_folder(experiment) if folder is None else Path(folder)
    cluster = None if ray is None else RayCluster(ray)
    return Dataset(prepare_dataset(experiment.data, experiment.features, chosen, progress or Silent(), cluster))


def prepared_folder(experiment: Experiment) -> Path:
    """Where the encoded dataset of an experiment lies by default; looks at the raw files' heads only.

    Raises:
        ConfigError, DataError: as :func:`prepare`, as far as configs and file heads can tell.
    """
    digest = dataset_fingerprint(experiment.data, experiment.features)[:8]
    return Path("prepared") / f"{experiment.name}-{digest}"
