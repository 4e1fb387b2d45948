"""Copies a dataset without its training rows from a reader: everything a trainer needs besides the batches.

Manifest, encoders and statistics determine the model and its checkpoints. Validation and test rows are read repeatedly,
so it is better to store them locally than to transfer them each time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.flight as flight

from ziggurat.core.errors import DataError, ReadersLost
from ziggurat.core.files import atomic_folder
from ziggurat.core.progress import Progress
from ziggurat.data.encoded.dataset import Dataset, Split, SplitBlocks, arrow_schema
from ziggurat.data.ingest.connection import LOST, first_line, identity_error, open_client
from ziggurat.data.ingest.protocol import FILES, BlockTicket, ReaderIdentity

_PAUSE_SECONDS = 0.5
_COPIED_SPLITS: tuple[Split, ...] = ("validation", "test")


def fetch_dataset(readers: Sequence[str], folder: Path, seconds: float, progress: Progress) -> Dataset:
    """Copies the readers' dataset, except its training rows, into ``folder``.

    Args:
        readers: the addresses of the readers; the first available one provides everything.
        folder: the destination; complete afterwards, or absent.
        seconds: how long to retry while no reader is available; one answer may take half of this time.
        progress: where to show progress.

    Raises:
        ReadersLost: no reader was available within ``seconds``; the message lists each with its last failure.
        DataError: a reader has another version, or the folder cannot be written.
    """
    deadline = time.monotonic() + seconds
    failures: dict[str, str] = {}
    while True:
        for address in readers:
            try:
                with atomic_folder(folder) as place:
                    _Reader(address, seconds / 2).copy(place, progress)
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
    """A reader from which a dataset is copied.

    Raises:
        LOST: the reader cannot be reached.
        DataError: the reader has another version.
    """

    def __init__(self, address: str, seconds: float) -> None:
        self._address = address
        self._options = flight.FlightCallOptions(timeout=seconds)
        self._client, description = open_client(address, seconds)
        self._identity = description.identity
        own = ReaderIdentity.of_this_process(description.identity.fingerprint)
        if description.identity != own:
            raise identity_error(address, f"serves {description.identity}, this process is {own}")

    def copy(self, folder: Path, progress: Progress) -> None:
        """Copies the small files and the evaluation splits into ``folder``."""
        for name, content in self._files():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            with path.open("ab") as file:
                file.write(content)
        dataset = Dataset(folder)
        rows = sum(dataset.split(split).rows for split in _COPIED_SPLITS)
        progress.start("fetch", rows, "rows")
        done = 0
        for split in _COPIED_SPLITS:
            for block_rows in self._copy_split(dataset.split(split), split, arrow_schema(dataset.schema)):
                done += block_rows
                progress.advance(done)
        progress.finish(f"{rows:,} rows to evaluate on, from {self._address}")

    def _files(self) -> Iterator[tuple[PurePosixPath, bytes]]:
        for answer in self._client.do_action(flight.Action(FILES, b""), self._options):
            name, _, content = answer.body.to_pybytes().partition(b"\0")
            path = PurePosixPath(name.decode())
            if path.is_absolute() or ".." in path.parts:
                raise DataError(
                    f"reader {self._address}: sent a file named {str(path)!r}", "name a reader that you trust"
                )
            yield path, content

    def _copy_split(self, blocks: SplitBlocks, split: str, schema: pa.Schema) -> Iterator[int]:
        """Copies a split file by file; yields the number of rows of each copied block."""
        blocks.folder.mkdir()
        for name, group in groupby(enumerate(blocks.blocks), lambda item: item[1][0]):
            with pa.ipc.new_file(str(blocks.folder / name), schema) as file:
                for number, (_, _, rows) in group:
                    ticket = BlockTicket(self._identity, split, number)
                    answer = self._client.do_get(flight.Ticket(ticket.to_bytes()), self._options)
                    file.write_batch(answer.read_chunk().data)
                    yield rows
