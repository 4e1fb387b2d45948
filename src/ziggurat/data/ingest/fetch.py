"""A dataset without its training rows, copied from a reader: all that a trainer needs besides the batches.

Manifest, encoders and statistics decide the model and its checkpoints; validation and test rows are evaluated on again
and again, and lie better here than on the way.
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
from ziggurat.data.ingest.connection import LOST, first_line, open_client, refusal
from ziggurat.data.ingest.protocol import FILES, BlockTicket, ReaderIdentity

_PAUSE_SECONDS = 0.5
_KEPT: tuple[Split, ...] = ("validation", "test")


def fetch_dataset(readers: Sequence[str], folder: Path, seconds: float, progress: Progress) -> Dataset:
    """Copy the readers' dataset into ``folder``, all but its training rows.

    Args:
        readers: addresses; the first that can gives everything.
        folder: whole afterwards, or not there.
        seconds: how long to ask all of them again while none can; a single answer may take half of it.
        progress: where to show it.

    Raises:
        ReadersLost: none could within ``seconds``; each is named, with its last failure.
        DataError: a reader is of another version; the folder cannot be written.
    """
    until = time.monotonic() + seconds
    failures: dict[str, str] = {}
    while True:
        for address in readers:
            try:
                with atomic_folder(folder) as place:
                    _Source(address, seconds / 2).copy(place, progress)
                return Dataset(folder)
            except LOST as error:
                failures[address] = first_line(error)
        if time.monotonic() > until:
            listed = "\n  ".join(f"{address}: {failure}" for address, failure in failures.items())
            raise ReadersLost(
                f"no reader has given its dataset for {seconds:g} s\n  {listed}",
                "start them (`ziggurat ingest`), or name others with --readers",
            )
        time.sleep(_PAUSE_SECONDS)


class _Source:
    """One reader, asked for what is not a batch.

    Raises:
        LOST: it cannot be reached.
        DataError: it is of another version.
    """

    def __init__(self, address: str, seconds: float) -> None:
        self._address = address
        self._options = flight.FlightCallOptions(timeout=seconds)
        self._client, there = open_client(address, seconds)
        self._identity = there.identity
        ours = ReaderIdentity.here(there.identity.fingerprint)
        if there.identity != ours:
            raise refusal(address, f"serves {there.identity}, this process is {ours}")

    def copy(self, folder: Path, progress: Progress) -> None:
        """Everything that is kept, into ``folder``."""
        for name, content in self._files():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            with path.open("ab") as file:
                file.write(content)
        dataset = Dataset(folder)
        rows = sum(dataset.split(split).rows for split in _KEPT)
        progress.start("fetch", rows, "rows")
        done = 0
        for split in _KEPT:
            for fresh in self._copy_split(dataset.split(split), split, arrow_schema(dataset.schema)):
                done += fresh
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
        """Copy file by file; yields the rows of each block."""
        blocks.folder.mkdir()
        for name, group in groupby(enumerate(blocks.blocks), lambda item: item[1][0]):
            with pa.ipc.new_file(str(blocks.folder / name), schema) as file:
                for number, (_, _, rows) in group:
                    ticket = BlockTicket(self._identity, split, number)
                    answer = self._client.do_get(flight.Ticket(ticket.to_bytes()), self._options)
                    file.write_batch(answer.read_chunk().data)
                    yield rows
