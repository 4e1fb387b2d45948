"""Where training batches come from: this machine's loader, or the readers that the config names."""

from __future__ import annotations

from pathlib import Path

from ziggurat.core.errors import ConfigError
from ziggurat.core.progress import Progress
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.loader import Loader
from ziggurat.data.ingest.fetch import fetch_dataset
from ziggurat.data.ingest.loader import IngestLoader
from ziggurat.features.preparation.prepare import ENCODERS
from ziggurat.features.transform import first_difference
from ziggurat.training.config import TrainingConfig
from ziggurat.training.experiment import Experiment


def fed(loader: Loader, dataset: Dataset, config: TrainingConfig, progress: Progress) -> Loader | IngestLoader:
    """``loader`` itself, or one that has ``training.readers`` make the same batches.

    Args:
        loader: of the training split.
        dataset: that it goes through; its training rows need not lie here where there are readers.
        config: names the readers.
        progress: told when one is lost or comes back, or when all are too slow.
    """
    if not config.readers:
        return loader
    return IngestLoader(
        loader,
        config.readers,
        "train",
        dataset.fingerprint,
        dataset.schema,
        seconds=config.reader_timeout,
        note=progress.note,
    )


def dataset_of_readers(experiment: Experiment, folder: Path, progress: Progress) -> Dataset:
    """The dataset in ``folder``; where there is none, a copy of that of ``training.readers``, without training rows.

    Raises:
        ConfigError: it was encoded by another config than this experiment's.
        ReadersLost: no reader gives it.
    """
    config = experiment.training
    here = (folder / "manifest.json").is_file()
    dataset = Dataset(folder) if here else fetch_dataset(config.readers, folder, config.reader_timeout, progress)
    different = first_difference(dataset.folder / ENCODERS, experiment.features, experiment.data.targets)
    if different:
        raise ConfigError(
            f"{different}: the readers' dataset {dataset.fingerprint[:12]} was encoded by another config",
            "train with the config that the readers were started with, or start them with this one",
        )
    return dataset
