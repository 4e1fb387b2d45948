"""One reader as a trainer sees it: an address, a connection that is opened when needed, and how it failed last."""

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
"""What a reader that is gone, ends or cannot read raises; another attempt, there or elsewhere, may go well."""

_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # a new connection does not inherit the last one's patience
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class Connection:
    """Asks one reader for batches; used by one thread, save :meth:`cancel`.

    Attributes:
        costly: the reader makes its blocks from raw logs; known once connected.

    Args:
        address: ``grpc://host:port``, or ``host:port``.
        identity: of this side.
        schema: of the dataset.
        seconds: after which an answer that is not complete counts as a failure.
    """

    def __init__(self, address: str, identity: ReaderIdentity, schema: Schema, seconds: float) -> None:
        self.address = checked_address(address)
        self.costly = False
        self._identity, self._schema, self._seconds = identity, schema, seconds
        self._client: flight.FlightClient | None = None
        self._answer: flight.FlightStreamReader | None = None

    def connect(self) -> None:
        """Ask the reader who it is, unless that was done.

        Raises:
            DataError, LOST: as :meth:`batches`.
        """
        if self._client is not None:
            return
        client, there = open_client(self.address, self._seconds)
        if there.identity != self._identity:
            raise refusal(self.address, f"serves {there.identity}, this process trains on {self._identity}")
        self._client, self.costly = client, there.costly

    def warm(self, split: str, order: Order, position: int) -> None:
        """Have the reader make ready the pool at this position of a stream; it does so while it answers others."""
        if self._client is not None:
            ticket = BatchTicket(self._identity, split, order, [range(position, position + 1)])
            list(self._client.do_action(flight.Action(WARM, ticket.to_bytes()), self._options()))

    def batches(self, split: str, order: Order, ranges: Sequence[range]) -> Iterator[Batch]:
        """The batches of these ranges.

        Raises:
            DataError: the reader serves another dataset, or is of another version.
            LOST: the reader cannot be reached, or ended before it had sent everything.
        """
        try:
            self.connect()
            assert self._client is not None
            ticket = BatchTicket(self._identity, split, order, ranges)
            answer = self._client.do_get(flight.Ticket(ticket.to_bytes()), self._options())
            self._answer = answer
            for wanted in ranges:
                batch = from_wire(answer.read_chunk().data, self._schema)
                assert batch.size == len(wanted), (batch.size, wanted)
                yield batch
        except StopIteration:
            raise flight.FlightServerError("the answer ended early") from None
        except flight.FlightServerError as error:
            if error.extra_info == REFUSED:
                raise refusal(self.address, first_line(error)) from None
            raise
        finally:
            self._answer = None

    def cancel(self) -> None:
        """Give up the answer that another thread is reading."""
        answer = self._answer
        if answer is not None:
            answer.cancel()

    def close(self) -> None:
        """Let go of the connection; the next question opens another."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _options(self) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=self._seconds)


def open_client(address: str, seconds: float) -> tuple[flight.FlightClient, Description]:
    """A connection to the reader at ``address``, and what it says of itself.

    Raises:
        LOST: it does not answer within ``seconds``.
    """
    client = flight.FlightClient(address, generic_options=_OPTIONS)
    answers = client.do_action(flight.Action(DESCRIBE, b""), flight.FlightCallOptions(timeout=seconds))
    return client, Description.from_bytes(next(iter(answers)).body.to_pybytes())


def refusal(address: str, difference: str) -> DataError:
    """The error for a reader whose rows would be others."""
    return DataError(
        f"reader {address}: {difference}",
        "start the readers with the config, the raw files and the versions of this run, or name other readers",
    )


def first_line(error: BaseException) -> str:
    """What the library says, without its own trace of calls."""
    return (str(error).splitlines() or [type(error).__name__])[0].partition(". Detail: ")[0]
