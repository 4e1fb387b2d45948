"""An Arrow Flight server behind a door: each call is authenticated, bounded, and answered without secrets.

Flight hands over a call after gRPC has received its request. What the kernel has received in vain is bounded by
:class:`~ziggurat.network.connections.Connections`; the rest is done here, before anything of a request is parsed.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Generator, Iterator
from typing import Any, Never

import pyarrow as pa
import pyarrow.flight as flight

from ziggurat.core.errors import ConfigError, ZigguratError
from ziggurat.network.access import Access, check_can_listen, check_exposure
from ziggurat.network.connections import Connections
from ziggurat.network.grpc_log import silence_grpc
from ziggurat.network.limits import Limits
from ziggurat.network.peer import Peer
from ziggurat.network.refusals import RefusalLog, Refused
from ziggurat.network.reputation import Reputation
from ziggurat.network.streams import AnswerStream, Streams
from ziggurat.network.token import HEADER, is_authentic
from ziggurat.network.turns import Turns

_CHECK_SECONDS = 0.1
_STOP_SECONDS = 2.0
_PAUSES = 8
"""Bad requests whose answers are delayed at a time; each keeps a thread and the request."""
_PAUSE_BYTES = 4 * 2**20
"""Bytes of a bad request for which its answer is delayed once more."""
_CALL_BYTES = 1024
"""What a call may send in headers and frames, besides its request."""
_MIDDLEWARE = "ziggurat"
_METHODS = {flight.FlightMethod.DO_GET, flight.FlightMethod.DO_ACTION}


class Call:
    """A call of an authenticated peer, with a request of bounded size.

    Attributes:
        peer: who calls.
        name: name of the action, or ``get``.
        request: the request.
        stream: its place among the answers.
    """

    def __init__(self, peer: Peer, name: str, request: bytes, stream: AnswerStream, turns: Turns, context: Any) -> None:
        self.peer, self.name, self.request = peer, name, request
        self.stream, self._turns, self._context = stream, turns, context

    @property
    def cancelled(self) -> bool:
        """Whether the client has gone. To be read while the answer is made, not later."""
        return self._context.is_cancelled()

    @contextlib.contextmanager
    def making(self, size_bytes: int) -> Generator[None]:
        """Waits for memory and for a fair turn to make the next part of the answer.

        Args:
            size_bytes: the expected size of the part.

        Raises:
            Refused: the server is busy.
        """
        self.stream.hold(size_bytes)
        with self._turns.turn(self.peer):
            yield

    def made(self, size_bytes: int) -> None:
        """Notes the size of the part that was made."""
        self.stream.made(size_bytes)


class GuardedServer(flight.FlightServerBase):  # pyright: ignore[reportUntypedBaseClass]
    """A server that starts on construction, serves in its own threads, and offers ``DoGet`` and ``DoAction``.

    A subclass implements :meth:`answer_get` and :meth:`answer_action`. They and the iterators that they return may
    raise :class:`~ziggurat.network.refusals.Refused`; of any other error the client learns only that there was one.

    Args:
        host: the host to listen on.
        port: the port to listen on; 0 selects a free one, see ``self.port``.
        access: what is demanded of clients.
        limits: the bounds.
        slots: parts of answers that are made at a time.
        reputation: which connections have proven themselves; empty at first.

    Raises:
        ConfigError: the server cannot listen on the address, or other machines could reach it without token or TLS.
    """

    def __init__(
        self, host: str, port: int, access: Access, limits: Limits, slots: int, reputation: Reputation
    ) -> None:
        check_exposure(host, access)
        check_can_listen(host, port)
        silence_grpc()
        self.limits = limits
        self.refusals = RefusalLog()
        self.stopping = threading.Event()
        self.reputation = reputation
        self.turns = Turns(slots, reputation)
        self._streams = Streams(limits, self.refusals, reputation, lambda peers: self.connections.cut(peers))
        self.connections = Connections(lambda: self.port, limits, self.refusals, self._streams.peers)
        self._pauses = threading.BoundedSemaphore(_PAUSES)
        certificate = access.certificate
        try:
            super().__init__(
                (host, port),
                tls_certificates=None if certificate is None else [(certificate.chain, certificate.key)],
                middleware={_MIDDLEWARE: _Reception(access.token, self.refusals)},
            )
        except pa.ArrowException as error:
            raise ConfigError(
                f"{host}:{port}: cannot be listened on ({error})", "choose another --host or --port"
            ) from None
        threading.Thread(target=self._watch, name=f"watch {self.port}", daemon=True).start()

    def answer_get(self, call: Call) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Returns the schema of an answer, and its record batches."""
        raise NotImplementedError

    def answer_action(self, call: Call) -> Iterator[bytes]:
        """Returns the parts of the answer to an action."""
        raise NotImplementedError

    @property
    def open_streams(self) -> int:
        """The number of answers being given now."""
        return len(self._streams)

    @property
    def held_bytes(self) -> int:
        """The memory of parts of answers that were made and are not taken yet."""
        return self._streams.held_bytes

    def do_get(self, context: Any, ticket: Any) -> Any:
        call = self._admit(context, "get", ticket.ticket)
        try:
            schema, parts = self.answer_get(call)
            return flight.GeneratorStream(schema, _Answer(self, call, parts))
        except Exception as error:  # noqa: BLE001 - all of them are reported to the client in plain words
            self.end(call)
            self.refuse(call.peer, error)

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        call = self._admit(context, action.type, action.body)
        try:
            return _Answer(self, call, self.answer_action(call))
        except Exception as error:  # noqa: BLE001 - as above
            self.end(call)
            self.refuse(call.peer, error)

    def stop(self) -> None:
        """Stops serving. Current answers end after their next part, and after two seconds in any case."""
        self.stopping.set()
        thread = threading.Thread(target=self.shutdown, daemon=True)
        thread.start()
        thread.join(_STOP_SECONDS)
        if thread.is_alive():
            self.connections.cut_all()
            thread.join(_STOP_SECONDS)

    def end(self, call: Call) -> None:
        """Gives back what a call holds."""
        call.stream.close()

    def refuse(self, peer: Peer, error: Exception) -> Never:
        """Raises the error for the client, and writes a line about it.

        Raises:
            FlightError: always.
        """
        if isinstance(error, flight.FlightError):
            raise error
        refused = error if isinstance(error, Refused) else _explained(error)
        if not self.stopping.is_set() and self.refusals.add(peer, refused.kind, refused.log) and refused.__cause__:
            traceback.print_exception(refused.__cause__)  # a bug, whose place must be found
        if refused.kind in {"bad", "secret"} and self._pauses.acquire(blocking=False):
            try:
                self.stopping.wait(self.limits.refusal_pause_s * (1 + refused.size_bytes // _PAUSE_BYTES))
            finally:
                self._pauses.release()
        raise _FLIGHT_ERRORS.get(refused.kind, flight.FlightServerError)(refused.message, refused.detail) from None

    def _admit(self, context: Any, name: str, request: Any) -> Call:
        peer = Peer.of_grpc(context.peer())
        size_bytes = len(name) + len(request)
        self.connections.account(peer, request_bytes=size_bytes + _CALL_BYTES)
        try:
            if not context.get_middleware(_MIDDLEWARE).is_authentic:
                raise Refused("secret", "the token is missing or wrong", size_bytes=size_bytes)
            if size_bytes > self.limits.request_bytes:
                message = f"a request of {size_bytes:,} bytes; at most {self.limits.request_bytes:,} are allowed"
                raise Refused("bad", message, size_bytes=size_bytes)
            if self.stopping.is_set():
                raise Refused("busy", "the server is shutting down")
            data = request if isinstance(request, bytes) else request.to_pybytes()
            return Call(peer, name, data, self._streams.open(peer), self.turns, context)
        except Exception as error:  # noqa: BLE001 - as above
            self.refuse(peer, error)

    def _watch(self) -> None:
        while not self.stopping.wait(_CHECK_SECONDS):
            self.connections.check()
            self._streams.end_stalled()


def _explained(error: Exception) -> Refused:
    """Returns a refusal that tells the client nothing; a bug is its cause."""
    is_bug = not isinstance(error, ZigguratError)
    words = f"{type(error).__name__}: {error}" if is_bug else error.problem
    refused = Refused("failed", "it cannot give this answer; its own output says why", log=words)
    refused.__cause__ = error if is_bug else None
    return refused


_FLIGHT_ERRORS: dict[str, Any] = {
    "secret": flight.FlightUnauthenticatedError,
    "busy": flight.FlightUnavailableError,
}


class _Answer(Iterator[Any]):
    """The parts of an answer, each made when the client has taken the last; the call ends with it.

    gRPC drops it when the client is gone, possibly before the first part, so it must not be a generator: one that was
    not started runs no ``finally``.
    """

    def __init__(self, server: GuardedServer, call: Call, parts: Iterator[Any]) -> None:
        self._server, self._call, self._parts = server, call, parts
        self._sent_bytes = self._taken_bytes = 0

    def __next__(self) -> Any:
        stream = self._call.stream
        stream.taken()
        self._taken_bytes += self._sent_bytes
        self._server.connections.account(self._call.peer, answer_bytes=self._sent_bytes)
        try:
            if self._server.stopping.is_set():
                raise Refused("busy", "the server is shutting down")
            part = next(self._parts)
        except StopIteration:
            self._server.end(self._call)
            self._server.reputation.taken(self._call.peer, self._taken_bytes)
            raise
        except Exception as error:  # noqa: BLE001 - reported to the client in plain words
            self._server.end(self._call)
            self._server.refuse(self._call.peer, error)
        self._sent_bytes = len(part) if isinstance(part, bytes) else part.nbytes
        stream.sending()
        return part

    def __del__(self) -> None:
        self._server.end(self._call)


class _Reception(flight.ServerMiddlewareFactory):  # pyright: ignore[reportUntypedBaseClass]
    """Sees the headers of each call before its request: refuses methods that are not offered, and checks the token."""

    def __init__(self, token: str | None, refusals: RefusalLog) -> None:
        self._token, self._refusals = token, refusals

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> Any:
        if info.method not in _METHODS:
            self._refusals.add(Peer("a client", 0), "bad", f"{info.method.name} is not offered")
            raise flight.FlightServerError(f"{info.method.name} is not offered")
        return _Checked(self._token is None or is_authentic(headers.get(HEADER, ()), self._token))


class _Checked(flight.ServerMiddleware):  # pyright: ignore[reportUntypedBaseClass]
    """Whether a call carries the token."""

    def __init__(self, is_authentic: bool) -> None:
        self.is_authentic = is_authentic

    def sending_headers(self) -> None: ...

    def call_completed(self, exception: Any) -> None: ...
