"""The source of training batches: this process's loader, or the readers that the config names."""

from __future__ import annotations

from pathlib import Path

from ziggurat.core.errors import ConfigError
from ziggurat.core.progress import Progress
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.loader import Loader
from ziggurat.data.encoded.manifest import ENCODERS, MANIFEST_FILE
from ziggurat.data.ingest.fetch import fetch_dataset
from ziggurat.data.ingest.loader import IngestLoader
from ziggurat.features.outside_encoders import check_outside_encoders
from ziggurat.features.transform import first_difference
from ziggurat.network.access import Credentials, read_credentials
from ziggurat.training.config import TrainingConfig
from ziggurat.training.run_folder.resume import check_dataset
from ziggurat.training.run_folder.run import Run


def training_loader(
    loader: Loader, dataset: Dataset, config: TrainingConfig, progress: Progress
) -> Loader | IngestLoader:
    """Returns ``loader`` itself, or, with ``training.readers``, a loader that gets the same batches from the readers.

    Args:
        loader: the loader of the training split.
        dataset: the dataset it reads; with readers, its training rows need not be stored on this machine.
        config: the section that names the readers.
        progress: gets a note when a reader is lost or comes back, or when all are too slow.
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
        credentials=_credentials(config),
    )


def dataset_of_readers(run: Run, folder: Path | None, progress: Progress, *, resumes: bool) -> Dataset:
    """Returns the readers' dataset without training rows, which is copied from them unless that was done before.

    A copy of another dataset than that of the config and the run is not kept, so that the next attempt copies again.

    Args:
        run: the run that is to be trained.
        folder: the folder for the copy; default: ``dataset`` in the run folder.
        progress: where to show progress.
        resumes: whether the run continues. If not, a copy in the run folder is from an attempt with another config.

    Raises:
        ConfigError: the dataset was encoded by another config than the run's.
        RunFolderError: the run was started on another dataset.
        DataError: an encoder from outside the package gives other ids here than when it was fitted.
        ReadersLost: no reader provides it.
    """
    experiment, place = run.experiment, run.folder / "dataset" if folder is None else folder

    def check(dataset: Dataset) -> None:
        different = first_difference(dataset.folder / ENCODERS, experiment.features, experiment.data.targets)
        if different:
            raise ConfigError(
                f"{different}: the readers' dataset {dataset.fingerprint[:12]} was encoded by another config",
                "train with the config that the readers were started with, or start them with this one",
            )
        if resumes:
            check_dataset(run, dataset)

    if (place / MANIFEST_FILE).is_file() and (resumes or folder is not None):
        dataset = Dataset(place)
        check(dataset)
    else:
        config = experiment.training
        credentials = _credentials(config)
        dataset = fetch_dataset(config.readers, place, config.reader_timeout, progress, credentials, check)
    check_outside_encoders(dataset.folder / ENCODERS, experiment.features)
    return dataset


def _credentials(config: TrainingConfig) -> Credentials:
    return read_credentials(config.reader_token_file, config.reader_authorities)
