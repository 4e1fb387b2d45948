"""One worker: a served model behind uvicorn, until a signal or the end of its parent drains it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import select
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from importlib.util import find_spec
from types import FrameType
from typing import Any

import uvicorn

from ziggurat.serving.http.app import Application
from ziggurat.serving.http.connection import bounded_connection
from ziggurat.serving.http.doors import Doors
from ziggurat.serving.http.limits import ServingLimits

_BACKLOG = 2048
_ACCEPT_S = 1.0
"""Seconds in which connections are accepted that wait when the server stops."""
_TLS_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


class WorkerServer(uvicorn.Server):
    """uvicorn, which a signal drains: the health turns to not ready, no connection is accepted, requests are answered.

    Args:
        application: what is served.
        doors: certificate and key.
        limits: the bounds.
        ready: called once it listens.
    """

    def __init__(
        self, application: Application, doors: Doors, limits: ServingLimits, ready: Callable[[], None] = lambda: None
    ) -> None:
        config = uvicorn.Config(
            application.asgi,  # pyright: ignore[reportArgumentType] - its messages are plain dictionaries
            loop="uvloop" if find_spec("uvloop") else "asyncio",
            http=bounded_connection(limits, application.shedding),
            ws="none",
            lifespan="on",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=1,  # connections that are accepted at a time: workers that share the socket get their part
            timeout_keep_alive=max(1, round(limits.idle_s)),
            timeout_graceful_shutdown=max(1, round(limits.drain_s)),
            ssl_certfile=doors.certificate,
            ssl_keyfile=doors.key,
            ssl_ciphers=_TLS_CIPHERS,
            ssl_context_factory=None if doors.certificate is None else _secure,
        )
        super().__init__(config)
        self._service, self._ready = application.service, ready

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handles signals, if this is the main thread, and leaves them to nobody afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drains; a second signal ends at once."""
        self.force_exit = self.should_exit
        self.drain()

    def drain(self) -> None:
        """Ends once what was admitted is answered."""
        self._service.stopping = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts the connections that wait in the kernel, which would be reset otherwise, and then stops listening."""
        until = asyncio.get_running_loop().time() + _ACCEPT_S
        while any(_has_connections(each) for each in sockets or ()) and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)  # the last of them becomes a connection
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_BACKLOG)  # uvicorn has set it to the number above
        self._ready()


def _has_connections(listening: socket.socket) -> bool:
    """Returns whether a connection waits to be accepted."""
    poll = select.poll()
    poll.register(listening, select.POLLIN)
    return bool(poll.poll(0))


def run_worker(server: WorkerServer, listening: socket.socket) -> None:
    """Serves until a signal.

    Args:
        server: the server.
        listening: the socket that it accepts connections from.
    """
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they would log tracebacks and what clients send
    if threading.current_thread() is threading.main_thread():  # the process serves, and does nothing else
        gc.collect()
        gc.freeze()  # a collection among all objects of torch and the model would hold requests up
    server.run([listening])


def _secure(config: Any, default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    context = default()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
