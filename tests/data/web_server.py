"""A web server on loopback, which serves files in parts, and fails or cheats on request."""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.s3_kit import serving


class WebServer(ThreadingHTTPServer):
    """Serves ``files``, path -> content.

    Attributes:
        url: URL of the server.
        files: path, with its leading slash and without a query -> content.
        versions: path -> number of its ETag.
        seen: (method, path with query, range) of each request.
        faults: of the next requests of content: a status, such as ``503``; ``cut``: the connection ends in the middle
            of the content; ``""``: none.
        always: a status that answers every request, also those for the size.
        parts: whether a part of a file is sent when one is asked for.
        sized: whether the size of a file is said.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.files: dict[str, bytes] = {}
        self.versions: dict[str, int] = {}
        self.seen: list[tuple[str, str, str]] = []
        self.faults: deque[str] = deque()
        self.always = ""
        self.parts = self.sized = True

    def ranges(self) -> list[tuple[int, int]]:
        """Returns the first and last byte of each part that was asked for."""
        found = (re.fullmatch(r"bytes=(\d+)-(\d+)", asked) for _, _, asked in self.seen)
        return [(int(each[1]), int(each[2])) for each in found if each]


@contextlib.contextmanager
def run_web_server() -> Generator[WebServer]:
    with serving(WebServer()) as server:
        yield server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebServer

    def _handle(self) -> None:
        server, path = self.server, self.path.partition("?")[0]
        asked = self.headers.get("Range", "")
        server.seen.append((self.command, self.path, asked))
        if server.always:
            self._answer(int(server.always), {}, b"as told")
            return
        if path not in server.files:
            self._answer(404, {}, b"no such file")
            return
        fault = server.faults.popleft() if server.faults and self.command == "GET" else ""
        if fault.isdecimal():
            self._answer(int(fault), {}, b"as told")
            return
        data, headers = server.files[path], {"ETag": f'"{server.versions.get(path, 0)}"'}
        part = re.fullmatch(r"bytes=(\d+)-(\d+)", asked) if server.parts else None
        if not server.parts:
            headers["Accept-Ranges"] = "none"
        if part is None:
            self._answer(200, headers, data, cut=fault == "cut")
            return
        start, end = int(part[1]), min(int(part[2]) + 1, len(data))
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        self._answer(206, headers, data[start:end], cut=fault == "cut")

    do_GET = do_HEAD = _handle

    def _answer(self, status: int, headers: dict[str, str], body: bytes, *, cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.server.sized:
            self.send_header("Content-Length", str(len(body)))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut or not self.server.sized:
            self.close_connection = True

    def log_message(self, *_: object) -> None: ...
