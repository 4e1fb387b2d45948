"""A trainer's connection to one reader, opened on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.flight as flight

from ziggurat.core.batch import Batch
from ziggurat.core.errors import DataError
from ziggurat.core.schema import Schema
from ziggurat.data.encoded.stream import Order
from ziggurat.data.ingest.address import checked_address
from ziggurat.data.ingest.protocol import DESCRIBE, REFUSED, WARM, BatchTicket, Description, ReaderIdentity
from ziggurat.data.ingest.wire import from_wire

LOST = (flight.FlightError, pa.ArrowException)
"""Errors raised if a reader is gone, shuts down or cannot read; a retry, with it or another reader, may succeed."""

_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # a new connection does not inherit the back-off of the last one
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class Connection:
    """Requests batches from one reader. Used by a single thread, except for :meth:`cancel`.

    Attributes:
        costly: whether the reader makes its blocks from raw logs; known once connected.

    Args:
        address: ``grpc://host:port``, or ``host:port``.
        identity: the identity of this process.
        schema: the schema of the dataset.
        seconds: time limit for a complete answer.
    """

    def __init__(self, address: str, identity: ReaderIdentity, schema: Schema, seconds: float) -> None:
        self.address = checked_address(address)
        self.costly = False
        self._identity, self._schema, self._seconds = identity, schema, seconds
        self._client: flight.FlightClient | None = None
        self._answer: flight.FlightStreamReader | None = None

    def connect(self) -> None:
        """Connects, if necessary, and checks the reader's identity.

        Raises:
            DataError, LOST: as :meth:`batches`.
        """
        if self._client is not None:
            return
        client, description = open_client(self.address, self._seconds)
        if description.identity != self._identity:
            raise identity_error(
                self.address, f"serves {description.identity}, this process trains on {self._identity}"
            )
        self._client, self.costly = client, description.costly

    def warm(self, split: str, order: Order, position: int) -> None:
        """Requests that the reader prepare the pool at this position of a stream, which it does in the background."""
        if self._client is not None:
            ticket = BatchTicket(self._identity, split, order, [range(position, position + 1)])
            list(self._client.do_action(flight.Action(WARM, ticket.to_bytes()), self._options()))

    def batches(self, split: str, order: Order, ranges: Sequence[range]) -> Iterator[Batch]:
        """Yields the batches of these ranges.

        Raises:
            DataError: the reader serves another dataset or has another version.
            LOST: the reader cannot be reached, or its answer is incomplete.
        """
        try:
            self.connect()
            assert self._client is not None
            ticket = BatchTicket(self._identity, split, order, ranges)
            answer = self._client.do_get(flight.Ticket(ticket.to_bytes()), self._options())
            self._answer = answer
            for rows in ranges:
                batch = from_wire(answer.read_chunk().data, self._schema)
                assert batch.size == len(rows), (batch.size, rows)
                yield batch
        except StopIteration:
            raise flight.FlightServerError("the answer ended early") from None
        except flight.FlightServerError as error:
            if error.extra_info == REFUSED:
                raise identity_error(self.address, first_line(error)) from None
            raise
        finally:
            self._answer = None

    def cancel(self) -> None:
        """Cancels the answer that another thread is reading."""
        answer = self._answer
        if answer is not None:
            answer.cancel()

    def close(self) -> None:
        """Closes the connection; the next request opens a new one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _options(self) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=self._seconds)


def open_client(address: str, seconds: float) -> tuple[flight.FlightClient, Description]:
    """Connects to the reader at ``address``; returns the client and the reader's description.

    Raises:
        LOST: the reader does not answer within ``seconds``.
    """
    client = flight.FlightClient(address, generic_options=_OPTIONS)
    answers = client.do_action(flight.Action(DESCRIBE, b""), flight.FlightCallOptions(timeout=seconds))
    return client, Description.from_bytes(next(iter(answers)).body.to_pybytes())


def identity_error(address: str, difference: str) -> DataError:
    """Returns the error for a reader that would serve other rows."""
    return DataError(
        f"reader {address}: {difference}",
        "start the readers with the config, the raw files and the versions of this run, or name other readers",
    )


def first_line(error: BaseException) -> str:
    """Returns the library's message, without its internal call trace."""
    return (str(error).splitlines() or [type(error).__name__])[0].partition(". Detail: ")[0]
