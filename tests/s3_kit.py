"""A proxy in front of an S3 server, which fails on request as networks and stores do."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections import deque
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar
from urllib.parse import urlsplit

_Server = TypeVar("_Server", bound=ThreadingHTTPServer)
_PER_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
_CODES = {"403": "AccessDenied", "500": "InternalError", "501": "NotImplemented", "503": "SlowDown"}


class Proxy(ThreadingHTTPServer):
    """Forwards requests one at a time, so that checking a condition and the write are atomic.

    Attributes:
        url: URL of the proxy.
        seen: (method, path) of each request.
        faults: faults of the next requests with the method ``on``. ``403``, ``500``, ``501`` or ``503``: respond with
            this status; ``cut``: close the connection before forwarding; ``lost``: close it after forwarding; ``half``:
            break off the response; ``slow``: delay the request; an empty string: no fault.
        on: the method with faults; requests with others are forwarded.
        always: fault of every request of that method once ``faults`` is empty.
        ignore_conditions: whether the header If-None-Match is dropped.
    """

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = urlsplit(target).netloc
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.faults: deque[str] = deque()
        self.on, self.always, self.ignore_conditions = "PUT", "", False

    def count(self, method: str) -> int:
        return sum(each == method for each, _ in self.seen)

    def fault_of(self, method: str) -> str:
        if method != self.on:
            return ""
        return self.faults.popleft() if self.faults else self.always


@contextlib.contextmanager
def serving(server: _Server) -> Generator[_Server]:
    """Serves in a thread until the block ends."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def run_proxy(target: str) -> Generator[Proxy]:
    with serving(Proxy(target)) as proxy:
        yield proxy


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Proxy

    def _handle(self) -> None:
        proxy = self.server
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with proxy.lock:
            proxy.seen.append((self.command, self.path))
            fault = proxy.fault_of(self.command)
            if fault == "cut":
                self.close_connection = True
                return
            if fault in _CODES:
                message = f"<Error><Code>{_CODES[fault]}</Code><Message>as told</Message></Error>"
                self._answer(int(fault), {"Content-Type": "application/xml"}, message.encode())
                return
            if fault == "slow":
                time.sleep(0.5)
            status, headers, body = self._forward(data)
        if fault == "lost":
            self.close_connection = True
            return
        self._answer(status, headers, body, cut=fault == "half")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _forward(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _PER_HOP}
        if self.server.ignore_conditions:
            headers = {name: value for name, value in headers.items() if name.lower() != "if-none-match"}
        connection = http.client.HTTPConnection(self.server.target)
        connection.request(self.command, self.path, data, headers)
        response = connection.getresponse()
        kept = {name: value for name, value in response.getheaders() if name.lower() not in _PER_HOP}
        body = response.read()
        if self.command == "HEAD":
            kept["Content-Length"] = response.headers.get("Content-Length", "0")
        connection.close()
        return response.status, kept, body

    def _answer(self, status: int, headers: dict[str, str], body: bytes, *, cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True
