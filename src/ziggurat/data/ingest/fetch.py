"""Copies a dataset without its training rows from a reader: everything a trainer needs besides the batches.

Manifest, encoders and statistics determine the model and its checkpoints. Validation and test rows are read repeatedly,
so it is better to store them locally than to transfer them each time.

The reader is not trusted: it may only name files that a dataset has, and sends no more than it announced and than the
disk has space for. What arrived is a dataset only if it agrees with its own checksums and its manifest.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.flight as flight

from ziggurat.core.digests import digest_of_file
from ziggurat.core.errors import DataError, ReadersLost, shorten
from ziggurat.core.files import atomic_folder
from ziggurat.core.progress import Progress
from ziggurat.core.untrusted import file_name
from ziggurat.data.encoded.block_checksum import block_checksum
from ziggurat.data.encoded.dataset import Dataset, Split, SplitBlocks, arrow_schema
from ziggurat.data.encoded.manifest import record_block_checksums
from ziggurat.data.ingest.connection import (
    LOST,
    UNTRUSTED,
    check_schema,
    ended,
    identity_error,
    next_message,
    open_client,
    reader_address,
    reader_errors,
)
from ziggurat.data.ingest.protocol import FILES, BlockTicket, FileList, ListedFile, ReaderIdentity
from ziggurat.data.ingest.received_rows import check_block
from ziggurat.data.ingest.wire import block_message_bytes
from ziggurat.network.access import Credentials
from ziggurat.network.flight_client import call_options, connect, first_line

_PAUSE_SECONDS = 0.5
_COPIED_SPLITS: tuple[Split, ...] = ("validation", "test")
_TOP_FILES = {"manifest.json", "statistics.json", "statistics.safetensors"}
_FOLDER = "encoders"
_MAX_FILES = 100_000
_MESSAGE_BYTES = 64 * 2**20
"""Size of the largest list of files, or part of a file."""
_SPARE_BYTES = 2**28
"""Disk space that a copy leaves free."""


def fetch_dataset(
    readers: Sequence[str],
    folder: Path,
    seconds: float,
    progress: Progress,
    credentials: Credentials = Credentials(),  # noqa: B008 - immutable
    check: Callable[[Dataset], None] = lambda dataset: None,
) -> Dataset:
    """Copies the readers' dataset, except its training rows, into ``folder``.

    Args:
        readers: the addresses of the readers; the first available one provides everything.
        folder: the destination; complete afterwards, or absent.
        seconds: how long to retry while no reader is available; one answer may take half of this time.
        progress: where to show progress.
        credentials: what to show the readers, and by what to check them.
        check: called with the copy before it is put in place; if it raises an error, no copy is left.

    Raises:
        ConfigError: an address is malformed, or the token would travel unencrypted.
        ReadersLost: no reader was available within ``seconds``; the message lists each with its last failure.
        DataError: a reader has another version, refuses this trainer, or sends something that is no dataset, or the
            folder cannot be written.
    """
    addresses = [reader_address(each, credentials) for each in readers]
    deadline = time.monotonic() + seconds
    failures: dict[str, str] = {}
    while True:
        for address in addresses:
            try:
                with atomic_folder(folder) as place, _Reader(address, seconds / 2, credentials) as reader:
                    reader.copy(place, progress)
                    check(Dataset(place))
                return Dataset(folder)
            except LOST as error:
                failures[address] = first_line(error)
        if time.monotonic() > deadline:
            listed = "\n  ".join(f"{address}: {failure}" for address, failure in failures.items())
            raise ReadersLost(
                f"no reader has given its dataset for {seconds:g} s\n  {listed}",
                "start them (`ziggurat ingest`), or name others with --readers",
            )
        time.sleep(_PAUSE_SECONDS)


class _Reader:
    """A reader from which a dataset is copied; a context manager, which ends all that was asked of it.

    Raises:
        LOST: the reader cannot be reached.
        DataError: the reader has another version, refuses this trainer, or sends something that is no dataset.
    """

    def __init__(self, address: str, seconds: float, credentials: Credentials) -> None:
        self._address, self._where = address, f"reader {address}"
        self._credentials, self._options = credentials, call_options(credentials, seconds)
        self._client, description = open_client(address, seconds, credentials, _MESSAGE_BYTES)
        self._identity = description.identity
        own = ReaderIdentity.of_this_process(description.identity.fingerprint)
        if description.identity != own:
            raise identity_error(address, f"serves {description.identity}, this process is {own}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def copy(self, folder: Path, progress: Progress) -> None:
        """Copies the small files and the evaluation splits into ``folder``."""
        with reader_errors(self._address):
            self._copy_files(folder)
        dataset = self._open(folder)
        rows = sum(dataset.split(split).rows for split in _COPIED_SPLITS)
        progress.start("fetch", rows, "rows")
        done = 0
        checksums: dict[Split, list[str]] = {split: [] for split in _COPIED_SPLITS}
        for split in _COPIED_SPLITS:
            for block_rows, checksum in self._copy_split(dataset, split):
                checksums[split].append(checksum)
                done += block_rows
                progress.advance(done)
        record_block_checksums(folder, checksums)
        progress.finish(f"{rows:,} rows to evaluate on, from {self._address}")

    def _open(self, folder: Path) -> Dataset:
        """Opens what was copied, which must be the dataset that the reader says it serves."""
        try:
            dataset = Dataset(folder)
        except DataError as error:
            raise UNTRUSTED.of(self._where, f"sent no dataset: {error.problem}") from None
        if dataset.fingerprint != self._identity.fingerprint:
            raise UNTRUSTED.of(
                self._where,
                f"sent dataset {shorten(dataset.fingerprint[:12])}, and says that it serves {self._identity}",
            )
        return dataset

    def _copy_files(self, folder: Path) -> None:
        """Copies the small files."""
        with contextlib.closing(self._parts()) as parts:
            first = next(parts, None)
            if first is None:
                raise UNTRUSTED.of(self._where, "sent no list of the files of its dataset")
            listed = FileList.from_bytes(first, f"{self._where}: its list of files", UNTRUSTED).files
            self._check_files(listed, folder)
            (folder / _FOLDER).mkdir()
            for file in listed:
                self._copy_file(folder / file.name, file, parts)
            if next(parts, None) is not None:
                raise UNTRUSTED.of(self._where, "sent more than the files that it had announced")

    def _parts(self) -> Generator[bytes]:
        for answer in self._client.do_action(flight.Action(FILES, self._identity.to_bytes()), self._options):
            yield answer.body.to_pybytes()

    def _check_files(self, listed: Sequence[ListedFile], folder: Path) -> None:
        """Validates the names and sizes of the files that the reader announced."""
        if len(listed) > _MAX_FILES:
            raise UNTRUSTED.of(self._where, f"announced {len(listed):,} files, at most {_MAX_FILES:,} are allowed")
        seen = set[str]()
        for file in listed:
            inside = re.fullmatch(rf"{_FOLDER}/([^/]*)", file.name)
            if inside:
                file_name(inside[1], self._where, UNTRUSTED)
            elif file.name not in _TOP_FILES:
                allowed = f"{', '.join(sorted(_TOP_FILES))} and files in {_FOLDER}/"
                raise UNTRUSTED.of(self._where, f"announced the file {shorten(file.name)}; {allowed} are allowed")
            if file.name in seen or file.bytes < 0:
                fault = "twice" if file.name in seen else f"with {file.bytes} bytes"
                raise UNTRUSTED.of(self._where, f"announced the file {shorten(file.name)} {fault}")
            seen.add(file.name)
        self._check_space(sum(file.bytes for file in listed), folder)

    def _check_space(self, size_bytes: int, folder: Path) -> None:
        free = shutil.disk_usage(folder).free
        if size_bytes > free - _SPARE_BYTES:
            raise UNTRUSTED.of(
                self._where,
                f"would send {size_bytes:,} bytes; the disk of {folder.parent} has {free:,} free, of which "
                f"{_SPARE_BYTES:,} are left free",
            )

    def _copy_file(self, path: Path, file: ListedFile, parts: Iterator[bytes]) -> None:
        """Copies one file, whose size and checksum must be those announced."""
        received = 0
        with path.open("xb") as out:
            while received < file.bytes:
                part = next(parts, b"")
                received += len(part)
                if not part or received > file.bytes:
                    fault = f"{received:,} or more" if part else f"only {received:,}"
                    raise UNTRUSTED.of(
                        self._where, f"sent {fault} bytes of {file.name}, and had announced {file.bytes:,}"
                    )
                out.write(part)
        if digest_of_file(path) != file.checksum:
            raise UNTRUSTED.of(self._where, f"sent a damaged {file.name}: its content differs from its checksum")

    def _copy_split(self, dataset: Dataset, split: Split) -> Iterator[tuple[int, str]]:
        """Copies a split file by file; yields the number of rows and the checksum of each copied block."""
        blocks = dataset.split(split)
        schema = arrow_schema(dataset.schema)
        most_bytes = block_message_bytes(dataset.schema, max(blocks.sizes, default=0))
        self._client.close()
        self._client = connect(self._address, self._credentials, most_bytes)
        blocks.folder.mkdir()
        for name, group in groupby(enumerate(blocks.blocks), lambda item: item[1][0]):
            with pa.ipc.new_file(str(blocks.folder / name), schema) as file:
                for number, (_, _, rows) in group:
                    block = self._block(split, number, schema)
                    where = f"{self._where}: block {number} of {split}"
                    check_block(block, rows, dataset.schema, where, UNTRUSTED)
                    checksum = self._checked_checksum(block, blocks, number, where)
                    self._check_space(block.nbytes, blocks.folder)
                    file.write_batch(block)
                    yield rows, checksum

    def _block(self, split: str, number: int, schema: pa.Schema) -> pa.RecordBatch:
        ticket = BlockTicket(self._identity, split, number)
        with reader_errors(self._address):
            answer = self._client.do_get(flight.Ticket(ticket.to_bytes()), self._options)
            with ended(answer):
                check_schema(answer, schema, self._where)
                block = next_message(answer, self._where)
                if block is None or next_message(answer, self._where) is not None:
                    raise UNTRUSTED.of(self._where, f"sent {'no' if block is None else 'more than one'} block")
        return block

    def _checked_checksum(self, block: pa.RecordBatch, blocks: SplitBlocks, number: int, where: str) -> str:
        checksum = block_checksum(block)
        if blocks.checksums is not None and checksum != blocks.checksums[number]:
            raise UNTRUSTED.of(where, "is damaged: its content differs from its checksum")
        return checksum
