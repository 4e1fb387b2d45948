"""A connection of the server: uvicorn's, with bounds on what a client may hold it for.

uvicorn waits for ever for the head of a request, takes one of any size, and waits for ever for a client that does not
take its answer.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ziggurat.serving.http.gate import COMPLETE, GONE
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.refusals import HttpRefused
from ziggurat.serving.http.shedding import Shedding

_LAST_REQUEST_S = 0.5
"""Seconds for a request on an open connection, once the server stops."""
_GOODBYE_S = 1.0
"""Seconds in which the client of an idle connection must confirm its end, as TLS asks it to.

A client that keeps a connection for later does not read, so it does not confirm; asyncio and uvloop wait 30 s for it.
"""


class BoundedConnection(HttpToolsProtocol):
    """A connection with bounds; :func:`bounded_connection` sets them."""

    LIMITS = ServingLimits()
    SHEDDING: Shedding | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_bytes = 0
        self._in_head = True
        self._ending = False
        self._timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._since, self._was_used = time.monotonic(), False
        self._end_timer: asyncio.TimerHandle | None = None
        self._goodbye_timer: asyncio.TimerHandle | None = None
        self._gone: asyncio.Future[None] = self.loop.create_future()
        self._shed: HttpRefused | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if len(self.connections) > self.LIMITS.connections and not self._make_room():
            self._refuse(HttpRefused(503, "overloaded", "too many connections are open", retry_after_s=1))
            return
        self._await_head()

    def _make_room(self) -> bool:
        """Closes the connection that has waited longest for a request, first of those that never sent one."""
        waiting = [
            each
            for each in self.connections
            if isinstance(each, BoundedConnection) and each is not self and each._waits
        ]
        if not waiting:
            return False
        first = min(waiting, key=lambda each: (each._was_used, each._since))
        first._refuse(HttpRefused(408, "slow_head", "its place was needed, as too many connections are open"))
        return True

    @property
    def _waits(self) -> bool:
        """Whether no request is being received or answered."""
        is_answered = not self.cycle or self.cycle.response_complete
        return self._in_head and is_answered and not self.transport.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        if not self._gone.done():
            self._gone.set_result(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_head:
            if self._timer is None:
                self._await_head()
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self.LIMITS.head_bytes:
            self._refuse_large_head()

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        self._in_head, self._head_bytes = False, 0
        if size > self.LIMITS.head_bytes:
            self._refuse_large_head()
            raise ValueError("the head of the request is too large")
        self._shed = self._shed_unread()
        if self._shed is not None:
            return  # the timer of its head bounds its body, too
        self._cancel_head_timer()
        self.scope[GONE] = self._gone  # pyright: ignore[reportGeneralTypeIssues] - a key of our own
        super().on_headers_complete()
        if self._ending and self.cycle:
            self.cycle.keep_alive = False

    def _shed_unread(self) -> HttpRefused | None:
        """Returns the refusal of a request whose body is not to be read; None if it is answered as usual."""
        is_busy = self.cycle and not self.cycle.response_complete
        if self.SHEDDING is None or is_busy or self._ending or self.expect_100_continue or self.flow.write_paused:
            return None
        assert self.parser is not None  # it calls this
        return self.SHEDDING.refusal(self.parser.get_method(), self.url)

    def on_body(self, body: bytes) -> None:
        if self._shed is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._shed is not None:
            self._cancel_head_timer()
            self._answer_shed(self._shed)
            self._shed = None
        else:
            super().on_message_complete()
            self.scope[COMPLETE] = True  # pyright: ignore[reportGeneralTypeIssues] - a key of our own
        self._in_head = self._was_used = True
        self._since = time.monotonic()

    def _answer_shed(self, refused: HttpRefused) -> None:
        assert self.parser is not None  # it calls this
        keep = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        self.transport.write(_response(refused, close=not keep))
        self.server_state.total_requests += 1
        if not keep:
            self._close_idle()
            return
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def shutdown(self) -> None:
        """Ends the connection once what its client has sent is answered.

        A connection that was accepted a moment ago, or whose request is on its way, has a moment for it; uvicorn alone
        would close it at once, and lose the request.
        """
        self._ending = True
        if self.cycle and not self.cycle.response_complete:
            super().shutdown()  # it is answered, and then closed
        elif not self.transport.is_closing():
            self._end_timer = self.loop.call_later(_LAST_REQUEST_S, self._end)

    def _end(self) -> None:
        if self._in_head and self._head_bytes:
            return  # its head is on its way; the timer of the head bounds that
        if not self.cycle or self.cycle.response_complete:
            self._close_idle()

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing():
            self._close_idle()

    def _close_idle(self) -> None:
        """Closes a connection without an answer that its client still takes."""
        self.transport.close()
        self._goodbye_timer = self.loop.call_later(_GOODBYE_S, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            self._refuse(HttpRefused(400, "invalid_http", "this is no valid HTTP/1.1 request"))

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(self.LIMITS.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        super().resume_writing()

    def _await_head(self) -> None:
        self._cancel_head_timer()
        self._timer = self.loop.call_later(self.LIMITS.head_s, self._refuse_slow_head)

    def _cancel_head_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cancel_timers(self) -> None:
        self._cancel_head_timer()
        for timer in (self._unread_timer, self._end_timer, self._goodbye_timer):
            if timer is not None:
                timer.cancel()
        self._unread_timer = self._end_timer = self._goodbye_timer = None

    def _refuse_slow_head(self) -> None:
        self._timer = None
        if self.cycle and not self.cycle.response_complete:  # it is a later request of this connection
            self._await_head()
            return
        problem = f"the head of the request was not complete within {self.LIMITS.head_s:g} s"
        self._refuse(HttpRefused(408, "slow_head", problem))

    def _refuse_large_head(self) -> None:
        problem = f"the request's line and headers have more than {self.LIMITS.head_bytes:,} bytes"
        self._refuse(HttpRefused(431, "large_head", problem))

    def _refuse(self, refused: HttpRefused) -> None:
        """Answers without the application, and closes the connection."""
        if self.transport.is_closing():
            return
        self.transport.write(_response(refused, close=True))
        self._close_idle()


_PHRASES = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


def _response(refused: HttpRefused, *, close: bool) -> bytes:
    """Returns the bytes of a refusal that the application does not answer."""
    body = refused.body()
    headers = [*refused.headers(), (b"content-length", str(len(body)).encode())]
    headers += [(b"x-request-id", f"{random.getrandbits(128):032x}".encode())]
    headers += [(b"connection", b"close")] * close
    head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return f"HTTP/1.1 {refused.status} {_PHRASES[refused.status]}\r\n".encode() + head + b"\r\n" + body


def bounded_connection(limits: ServingLimits, shedding: Shedding | None = None) -> type[BoundedConnection]:
    """Returns the class of connections with these bounds, which refuse what is shed."""
    return type("Connection", (BoundedConnection,), {"LIMITS": limits, "SHEDDING": shedding})
