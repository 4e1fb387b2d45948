"""Stands before the application: admits, receives bodies within bounds, turns errors into answers, logs and counts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ziggurat.serving.http.access_log import AccessLog
from ziggurat.serving.http.doors import Doors
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.metrics import Metrics
from ziggurat.serving.http.refusals import HttpRefused, overloaded

CALL = "ziggurat.call"
"""The key of the scope under which the application finds the :class:`GateCall`."""
COMPLETE = "ziggurat.complete"
"""The key of the scope that is true once the whole body has arrived, so that nobody need wait for it."""
GONE = "ziggurat.gone"
"""The key of the scope whose future is done once the client has gone, so that nothing is computed for it."""
Direct = Mapping[tuple[str, str], Callable[[Request], Awaitable[Response]]]
"""(Method, path) -> what answers it."""
_LOGGED_BYTES = 64 * 2**10
"""Bytes of a body that are logged, if bodies are."""
_LINGER_S = 1.0
_LINGER_BYTES = 64 * 2**20


@dataclass(slots=True)
class GateCall:
    """A request on its way.

    Attributes:
        began: when its head was complete (monotonic seconds).
        id: what names it in the log and in the answer.
        body: its body.
        arrived_bytes: bytes of it that have arrived, which take room of those of all requests.
        endpoint: the route, for logs and metrics, which hold no path that a client made up.
        client: the name of who calls.
        rows: its rows, once they are known.
        gone: is done once the client has gone; None where the server does not tell.
        code: why it is refused; empty if it is answered.
        stages: stage -> seconds.
    """

    began: float
    id: str = ""
    body: bytes = b""
    arrived_bytes: int = 0
    endpoint: str = "other"
    client: str = "-"
    rows: int = 0
    gone: asyncio.Future[None] | None = None
    code: str = ""
    stages: dict[str, float] = field(default_factory=dict[str, float])


class Gate:
    """An ASGI application before another.

    Args:
        application: the other.
        doors: who is admitted.
        limits: the bounds.
        metrics, log: what is told of each request.
        direct: requests that are answered without the application, whose router takes longer than a prediction.
    """

    def __init__(
        self,
        application: ASGIApp,
        doors: Doors,
        limits: ServingLimits,
        metrics: Metrics,
        log: AccessLog,
        direct: Direct = MappingProxyType({}),
    ) -> None:
        self._application, self._doors, self._limits, self._direct = application, doors, limits, direct
        self._metrics, self._log = metrics, log
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        call = GateCall(time.monotonic(), f"{random.getrandbits(128):032x}", gone=scope.get(GONE))
        scope[CALL] = call
        status, sent, started = 0, 0, False

        async def counted(message: Message) -> None:
            nonlocal status, sent, started
            if message["type"] == "http.response.start":
                started, status = True, message["status"]
                message = {**message, "headers": [*message.get("headers", []), (b"x-request-id", call.id.encode())]}
            sent += len(message.get("body", b""))
            await send(message)

        try:
            try:
                call.client = self._doors.admit(scope["path"], scope["headers"])
                announced = _content_length(scope)
                if announced is not None and announced > self._limits.body_bytes:
                    raise self._too_large(f"{announced:,} bytes")
                try:
                    call.body = await self._body(scope, receive, call)
                    call.stages["receive"] = time.monotonic() - call.began
                    answer = self._direct.get((scope["method"], scope["path"]))
                    if answer is None:
                        await self._application(scope, _received(call.body, receive), counted)
                    else:
                        response = await answer(Request(scope))
                        await response(scope, receive, counted)
                finally:
                    self._held_bytes -= call.arrived_bytes
            except HttpRefused as refused:
                call.code = refused.code
                if not started:
                    ends = refused.close or (not call.body and _content_length(scope) != 0)
                    await _answer(counted, refused, receive if ends else None)
            except Exception as error:  # noqa: BLE001 - the last resort: a defect of ours, without its traceback
                self._log.failure(error, id=call.id, endpoint=call.endpoint)
                refused = internal(call)
                if not started:
                    await _answer(counted, refused)
        finally:
            seconds = time.monotonic() - call.began
            if "predict" in call.stages:
                call.stages["answer"] = max(0.0, seconds - sum(call.stages.values()))
            if call.code:
                self._metrics.refused(call.code)
            self._metrics.answered(call.endpoint, status, seconds, call.stages)
            if self._log.is_on:
                self._note(scope, call, status, sent, seconds)

    def _note(self, scope: Scope, call: GateCall, status: int, sent: int, seconds: float) -> None:
        """Logs a request."""
        self._log.request(
            id=call.id,
            client=call.client,
            peer=(scope.get("client") or ("-",))[0],
            method=scope["method"] if scope["method"] in {"GET", "POST", "HEAD"} else "other",
            endpoint=call.endpoint,
            status=status,
            code=call.code or None,
            rows=call.rows,
            bytes_in=len(call.body),
            bytes_out=sent,
            ms=round(1e3 * seconds, 3),
            stages_ms={name: round(1e3 * took, 3) for name, took in call.stages.items()},
            **({"body": call.body[:_LOGGED_BYTES].decode("utf-8", "replace")} if self._log.has_bodies else {}),
        )

    def _hold(self, call: GateCall, size: int) -> None:
        """Counts bytes that a request has sent, not those that it has announced: who sends slowly holds little.

        Raises:
            HttpRefused: there is no room for them.
        """
        if self._held_bytes + size > self._limits.all_bodies_bytes:
            raise overloaded(f"the bodies of other requests hold {self._held_bytes - call.arrived_bytes:,} bytes", 1.0)
        self._held_bytes += size
        call.arrived_bytes += size

    async def _body(self, scope: Scope, receive: Receive, call: GateCall) -> bytes:
        """Receives the body.

        Raises:
            HttpRefused: it is too large, is compressed, or does not arrive in time, or there is no room for it.
        """
        for name, value in scope["headers"]:
            if name == b"content-encoding" and value.strip().lower() not in {b"", b"identity"}:
                raise HttpRefused(
                    415,
                    "compressed_body",
                    "the body is compressed",
                    "send it without Content-Encoding",
                    close=True,
                )
        parts: list[bytes] = []
        try:
            async with contextlib.nullcontext() if scope.get(COMPLETE) else asyncio.timeout(self._limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HttpRefused(400, "disconnected", "the client went before its body was complete")
                    part = message.get("body", b"")
                    if call.arrived_bytes + len(part) > self._limits.body_bytes:
                        raise self._too_large("more")
                    self._hold(call, len(part))
                    if part:
                        parts.append(part)
                    if not message.get("more_body", False):
                        return parts[0] if len(parts) == 1 else b"".join(parts)
        except TimeoutError:
            raise HttpRefused(
                408,
                "slow_body",
                f"the body was not complete within {self._limits.body_s:g} s",
                "send it faster, or in smaller requests",
                close=True,
            ) from None

    def _too_large(self, received: str) -> HttpRefused:
        return HttpRefused(
            413,
            "too_large",
            f"the body has {received}; {self._limits.body_bytes:,} bytes are allowed",
            "send fewer rows in a request, or start the server with a larger --max-body-mib",
            close=True,
        )


def internal(call: GateCall) -> HttpRefused:
    """Returns what a request gets that a defect of ours fails, without its traceback, and notes it."""
    call.code = "internal"
    return HttpRefused(500, call.code, f"the server failed; its log has the reason under the id {call.id}")


def _content_length(scope: Scope) -> int | None:
    """Returns the announced size of the body, 0 if none will come, None if it is not announced."""
    chunked = False
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
        chunked |= name == b"transfer-encoding"
    return None if chunked else 0


def _received(body: bytes, receive: Receive) -> Receive:
    """Returns a ``receive`` that gives the body, which was received already."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _answer(send: Send, refused: HttpRefused, receive: Receive | None = None) -> None:
    """Sends a refusal.

    Args:
        send: sends it.
        refused: the refusal.
        receive: receives the rest of the request, if the connection is to be closed. What is on its way is taken for a
            second: a connection that is closed while its client sends may lose the answer.
    """
    body = refused.body()
    headers = [*refused.headers(), (b"content-length", str(len(body)).encode())]
    if receive is not None:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": receive is not None})
    if receive is None:
        return
    left = _LINGER_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    break
    await send({"type": "http.response.body", "body": b"", "more_body": False})
