"""Serves an experiment's batches to trainers: the readers of the ingestion tier."""

from __future__ import annotations

import contextlib
import fcntl
import functools
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from ziggurat.core.errors import ConfigError, DataError
from ziggurat.core.files import atomic_file
from ziggurat.core.progress import Progress, Silent
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.manifest import ENCODERS, MANIFEST_FILE
from ziggurat.data.ingest.prepared import open_prepared, small_files
from ziggurat.data.ingest.processes import ReaderProcesses
from ziggurat.data.ingest.server import ServedDataset
from ziggurat.data.readers.parquet.reader import ParquetSource
from ziggurat.features.config import DataConfig, FeatureConfig
from ziggurat.features.preparation.prepare import dataset_fingerprint, open_sources
from ziggurat.features.raw_blocks import open_raw
from ziggurat.features.raw_index import index_raw
from ziggurat.network.access import Access, check_exposure
from ziggurat.network.limits import Limits
from ziggurat.training.experiment import Experiment, as_experiment
from ziggurat.training.preparation import prepare, prepared_folder
from ziggurat.training.run_folder.run import open_run
from ziggurat.training.run_folder.run_files import DATASET_FILE

_LAST_PORT = 65_535


def ingest(
    experiment: Experiment | str | Path,
    *,
    prepared: str | Path | None = None,
    raw: bool = False,
    host: str = "127.0.0.1",
    port: int = 0,
    readers: int = 1,
    address_file: str | Path | None = None,
    access: Access = Access(),  # noqa: B008 - immutable
    limits: Limits = Limits(),  # noqa: B008 - immutable
    listening: Callable[[Sequence[str]], None] = lambda addresses: None,
    progress: Progress | None = None,
) -> None:
    """Serves batches until an exception, such as that of a signal; prepares the dataset first if needed.

    Args:
        experiment: the config, or its YAML file; its ``data`` and ``features`` sections count.
        prepared: folder of the encoded dataset; default as in :func:`ziggurat.prepare`. With ``raw``, the folder of a
            dataset or run whose encoders are used.
        raw: whether to encode blocks from the raw files on request; the encoded dataset need not exist.
        host: the host address to listen on.
        port: the first port to listen on; several readers use consecutive ports. 0 means free ports.
        readers: number of reader processes.
        address_file: file that holds the addresses, one per line, while all readers listen.
        access: the token and the certificate; both are required if ``host`` can be reached from other machines.
        limits: what trainers may take.
        listening: called with the addresses once all readers listen.
        progress: where to show progress.

    Raises:
        ConfigError: a port is out of range or in use, the host address is not available, other machines could reach it
            without token or TLS, or the address file is that of running readers.
        DataError, FeatureError: as in :func:`ziggurat.prepare`; with ``raw``, there are no encoders, or they were
            fitted to other data.
    """
    if port and port + readers - 1 > _LAST_PORT:
        raise ConfigError(
            f"--port {port} with {readers} readers ends at port {port + readers - 1}; the last is {_LAST_PORT}",
            "choose a lower --port, or 0 for free ports",
        )
    check_exposure(host, access)
    experiment = as_experiment(experiment)
    progress = progress or Silent()
    addresses = None if address_file is None else Path(address_file)
    if addresses is not None:
        _remove_left_over(addresses)
    folder = None if prepared is None else Path(prepared)
    if raw:
        served = _from_raw(experiment, folder, progress)
    else:
        served = functools.partial(
            open_prepared, prepare(experiment, folder=folder, progress=progress).folder.resolve()
        )
    with (
        ReaderProcesses(served, host, port, readers, access, limits) as processes,
        _published_addresses(processes.addresses, addresses),
    ):
        listening(processes.addresses)
        processes.watch(progress)


def _from_raw(experiment: Experiment, folder: Path | None, progress: Progress) -> Callable[[], ServedDataset]:
    """Indexes the raw files and returns a function that serves them, encoded with the encoders of ``folder``."""
    data, features = experiment.data, experiment.features
    prepared = prepared_folder(experiment)
    encoders, checksum = _find_encoders(prepared if folder is None else folder, dataset_fingerprint(data, features))
    files = [file for item in open_sources(data, features) for file in item.source.files]
    compressed = [
        str(file.path) for file in files if file.format_suffix not in ParquetSource.SUFFIXES and not file.is_plain
    ]
    if compressed:
        progress.note(
            f"{compressed[0]}{f' and {len(compressed) - 1} more' if len(compressed) > 1 else ''}: each block of a "
            "compressed file, or of one that is not UTF-8, is read from the start of the file; convert large files, or "
            "serve the prepared dataset"
        )
    index = prepared.with_name(f"{prepared.name}-index").resolve()
    index_raw(data, features, index, progress)
    return functools.partial(_serve_raw, data, features, encoders.resolve(), index, checksum)


def _serve_raw(
    data: DataConfig, features: Sequence[FeatureConfig], encoders: Path, index: Path, checksum: str | None
) -> ServedDataset:
    opened = open_raw(data, features, encoders, index, checksum)
    files = small_files(encoders.parent)
    return ServedDataset(opened.fingerprint, opened.schema, opened.splits, opened.manifest, files, costly=True)


def _find_encoders(folder: Path, expected: str) -> tuple[Path, str | None]:
    """Returns the folder of the encoders of a prepared dataset or run, and their checksum if that is recorded.

    Raises:
        DataError: they were fitted to another dataset than ``expected``, or there are none.
    """
    if (folder / MANIFEST_FILE).is_file():
        dataset = Dataset(folder)
        fingerprint, checksum = dataset.fingerprint, dataset.checksum(ENCODERS)
    elif (folder / DATASET_FILE).is_file():
        pointer = open_run(folder).pointer()
        assert pointer is not None, folder
        fingerprint, checksum = pointer.fingerprint, pointer.encoders
    else:
        raise DataError(
            f"{folder}: holds no encoders (neither {MANIFEST_FILE} nor {DATASET_FILE} is there)",
            "`ziggurat prepare` fits them; or name the folder of the dataset, or of a run, with --prepared",
        )
    if fingerprint != expected:
        raise DataError(
            f"{folder}: was made from dataset {fingerprint[:12]}, the config and raw files are {expected[:12]}",
            "name the prepared folder or run of this config and these files with --prepared",
        )
    return folder / ENCODERS, checksum


@contextlib.contextmanager
def _published_addresses(addresses: Sequence[str], path: Path | None) -> Generator[None]:
    """Writes the addresses to the file at ``path``, which exists within the context only."""
    if path is None:
        yield
        return
    with atomic_file(path) as temporary:
        temporary.write_text("".join(f"{address}\n" for address in addresses), encoding="utf-8")
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # says that these readers run
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _remove_left_over(path: Path) -> None:
    """Removes an address file that killed readers have left.

    Raises:
        ConfigError: its readers are running.
    """
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"--address-file {path}: holds the addresses of readers that are running",
                "choose another file, or end them first",
            ) from None
        path.unlink(missing_ok=True)
