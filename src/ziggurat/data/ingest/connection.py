"""A trainer's connection to one reader, opened on demand. Nothing that the reader sends is trusted."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence

import pyarrow.flight as flight

from ziggurat.core.batch import Batch
from ziggurat.core.errors import DataError, shorten
from ziggurat.core.schema import Schema
from ziggurat.core.untrusted import Damage
from ziggurat.data.encoded.stream import Order
from ziggurat.data.ingest.address import checked_address, host_of, is_encrypted
from ziggurat.data.ingest.protocol import DESCRIBE, MAX_ROWS, REFUSED, WARM, BatchTicket, Description, ReaderIdentity
from ziggurat.data.ingest.wire import batch_message_bytes, from_wire, wire_schema
from ziggurat.network.access import Credentials, check_secrecy
from ziggurat.network.flight_client import LOST as LOST
from ziggurat.network.flight_client import call_options, connect, first_line, is_untrusted, was_too_large

UNTRUSTED = Damage(DataError, "name readers that you trust, of this version (`ziggurat ingest`)")
"""What the errors about a reader look like that does not keep to the protocol."""

_DESCRIPTION_BYTES = 2**16


class Connection:
    """Requests batches from one reader. Used by a single thread, except for :meth:`cancel`.

    Attributes:
        costly: whether the reader makes its blocks from raw logs; known once connected.

    Args:
        address: the address of the reader; see :func:`~ziggurat.data.ingest.address.checked_address`.
        identity: the identity of this process.
        schema: the schema of the dataset.
        seconds: time limit for a complete answer.
        credentials: what to show the reader, and by what to check it.

    Raises:
        ConfigError: the address is malformed, or the token would travel unencrypted.
    """

    def __init__(
        self,
        address: str,
        identity: ReaderIdentity,
        schema: Schema,
        seconds: float,
        credentials: Credentials = Credentials(),  # noqa: B008 - immutable
    ) -> None:
        self.address = reader_address(address, credentials)
        self.costly = False
        self._identity, self._schema, self._seconds = identity, schema, seconds
        self._credentials = credentials
        self._message_bytes = batch_message_bytes(schema, MAX_ROWS)
        self._wire = wire_schema(schema)
        self._client: flight.FlightClient | None = None
        self._answer: flight.FlightStreamReader | None = None

    def connect(self) -> None:
        """Connects, if necessary, and checks the reader's identity.

        Raises:
            DataError, LOST: as :meth:`batches`.
        """
        if self._client is not None:
            return
        client, description = open_client(self.address, self._seconds, self._credentials, self._message_bytes)
        if description.identity != self._identity:
            raise identity_error(
                self.address, f"serves {description.identity}, this process trains on {self._identity}"
            )
        self._client, self.costly = client, description.costly

    def warm(self, split: str, order: Order, position: int) -> None:
        """Requests that the reader prepare the pool at this position of a stream, which it does in the background."""
        if self._client is not None:
            ticket = BatchTicket(self._identity, split, order, [range(position, position + 1)])
            with reader_errors(self.address):
                answers = self._client.do_action(flight.Action(WARM, ticket.to_bytes()), self._options())
                if next(iter(answers), None) is not None:
                    raise UNTRUSTED.of(f"reader {self.address}", f"sent an answer to {WARM!r}, which has none")

    def batches(self, split: str, order: Order, ranges: Sequence[range]) -> Iterator[Batch]:
        """Yields the batches of these ranges.

        Raises:
            DataError: the reader serves another dataset, has another version, refuses this trainer, or sends something
                other than these batches.
            LOST: the reader cannot be reached, or its answer is incomplete.
        """
        self.connect()
        assert self._client is not None
        where = f"reader {self.address}"
        ticket = BatchTicket(self._identity, split, order, ranges)
        with reader_errors(self.address):
            answer = self._client.do_get(flight.Ticket(ticket.to_bytes()), self._options())
        self._answer = answer
        try:
            with ended(answer):
                with reader_errors(self.address):
                    check_schema(answer, self._wire, where)
                for rows in ranges:
                    with reader_errors(self.address):
                        message = next_message(answer, where)
                    if message is None:
                        raise UNTRUSTED.of(where, f"ended its answer before rows {rows.start} to {rows.stop}")
                    yield from_wire(message, self._schema, len(rows), where, UNTRUSTED)
                with reader_errors(self.address):
                    if next_message(answer, where) is not None:
                        raise UNTRUSTED.of(where, f"sent more than the {len(ranges)} batches that were asked for")
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
        return call_options(self._credentials, self._seconds)


def reader_address(address: str, credentials: Credentials) -> str:
    """Returns the checked address of a reader to which these credentials may be shown.

    Raises:
        ConfigError: the address is malformed, or the token would travel unencrypted.
    """
    checked = checked_address(address)
    check_secrecy(checked, host_of(checked), is_encrypted(checked), credentials)
    return checked


def open_client(
    address: str, seconds: float, credentials: Credentials, message_bytes: int
) -> tuple[flight.FlightClient, Description]:
    """Connects to the reader at ``address``; returns the client and the reader's description.

    Args:
        address: a result of :func:`reader_address`.
        seconds: time limit for the description.
        credentials: what to show the reader, and by what to check it.
        message_bytes: size of the largest message to receive.

    Raises:
        DataError: the reader refuses this trainer, or sends no description.
        LOST: the reader does not answer within ``seconds``.
    """
    where = f"reader {address}"
    client = connect(address, credentials, max(message_bytes, 2 * _DESCRIPTION_BYTES))
    with reader_errors(address):
        answers = client.do_action(flight.Action(DESCRIBE, b""), call_options(credentials, seconds))
        found = next(iter(answers), None)
    if found is None or found.body.size > _DESCRIPTION_BYTES:
        raise UNTRUSTED.of(where, f"sent no description of itself, of at most {_DESCRIPTION_BYTES:,} bytes")
    return client, Description.from_bytes(found.body.to_pybytes(), f"{where}: its description", UNTRUSTED)


@contextlib.contextmanager
def reader_errors(address: str) -> Generator[None]:
    """Turns Flight's errors that a retry cannot cure into errors that name the reader.

    Raises:
        DataError: reader and trainer differ, the reader refuses this trainer, or it sent what is not Arrow.
        LOST: any other error of Flight.
    """
    where = f"reader {address}"
    try:
        yield
    except flight.FlightUnauthenticatedError:
        raise DataError(
            f"{where}: refuses this trainer, whose token is missing or wrong",
            "set training.reader_token_file to a copy of the file that the readers were given as --token-file",
        ) from None
    except flight.FlightServerError as error:
        if error.extra_info == REFUSED:
            raise identity_error(address, first_line(error)) from None
        raise
    except flight.FlightUnavailableError as error:
        if is_untrusted(error):
            raise DataError(
                f"{where}: its certificate is not trusted ({first_line(error)})",
                "set training.reader_authorities to a copy of the readers' certificate or of its signer's, "
                "and name the readers as the certificate does",
            ) from None
        raise
    except flight.FlightCancelledError as error:
        if was_too_large(error):
            raise UNTRUSTED.of(where, "sent a message that is larger than what was asked for can be") from None
        raise
    except flight.FlightError:
        raise
    except LOST as error:
        raise UNTRUSTED.of(where, f"sent something that is no Arrow message: {first_line(error)}") from None


@contextlib.contextmanager
def ended(answer: flight.FlightStreamReader) -> Generator[None]:
    """Cancels an answer that was not read to its end."""
    try:
        yield
    except BaseException:
        answer.cancel()
        raise


def check_schema(answer: flight.FlightStreamReader, expected: object, where: str) -> None:
    """Validates the columns of an answer, before any of its rows is decoded.

    Raises:
        DataError: they are others.
    """
    if not answer.schema.equals(expected):
        found, wanted = shorten(str(answer.schema), 200), shorten(str(expected), 200)
        raise UNTRUSTED.of(where, f"sent the columns {found}, not {wanted}")


def next_message(answer: flight.FlightStreamReader, where: str) -> object | None:
    """Returns the next record batch of an answer; None at its end.

    Raises:
        DataError: it is another kind of message.
    """
    try:
        chunk = answer.read_chunk()
    except StopIteration:
        return None
    if chunk.data is None:
        raise UNTRUSTED.of(where, "sent a message without rows")
    return chunk.data


def identity_error(address: str, difference: str) -> DataError:
    """Returns the error for a reader that would serve other rows."""
    return DataError(
        f"reader {address}: {difference}",
        "start the readers with the config, the raw files and the versions of this run, or name other readers",
    )
