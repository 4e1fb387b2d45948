"""An open-loop client of HTTP: requests are sent at drawn times, whether or not earlier ones are answered.

A closed loop waits for an answer before it sends the next request, so a server that stalls is asked less and looks
better than it is. Here a latency counts from the time at which the request was due, also if it had to wait for a free
connection. Times are those of a Poisson process.

Run as a module it reads ``{"host", "port", "requests", "rate", "seconds", "seed", "connections", "core"}`` from its
standard input, a body a request in base64, and writes a :class:`Load` to its standard output, both in JSON.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from bench.contestant import ROOT

CONNECTIONS = 256
_GRACE_S = 10.0
"""Seconds in which the last requests may still be answered."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request, which is sent as it is.

    Attributes:
        path: ``/v1/predict``.
        body: its body.
        kind: its Content-Type.
        headers: further headers, each with its end of line.
    """

    path: str
    body: bytes
    kind: str = "application/json"
    headers: str = ""

    def encoded(self, host: str) -> bytes:
        head = f"POST {self.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {self.kind}\r\n{self.headers}"
        return f"{head}Content-Length: {len(self.body)}\r\n\r\n".encode() + self.body


def with_headers(requests: Sequence[Request], headers: str) -> list[Request]:
    """Returns requests with further headers."""
    return [replace(each, headers=headers) for each in requests]


@dataclass(frozen=True, slots=True)
class Load:
    """What an open loop saw.

    Attributes:
        offered: requests that were due.
        seconds: in which they were due.
        statuses: status -> answers; 0: the connection ended without one.
        latencies_ms: of the answers with status 200, in the order in which they were due.
        refused_s: the longest time in which every new connection was refused.
    """

    offered: int
    seconds: float
    statuses: dict[int, int]
    latencies_ms: list[float]
    refused_s: float = 0.0

    @property
    def rate(self) -> float:
        """Answers with status 200 a second."""
        return len(self.latencies_ms) / self.seconds

    @property
    def all_answered(self) -> bool:
        return len(self.latencies_ms) == self.offered

    def percentile(self, percent: float) -> float:
        """Returns a percentile of the latency in milliseconds; infinite if a request was not answered with 200."""
        missing = [np.inf] * (self.offered - len(self.latencies_ms))
        return float(np.percentile([*self.latencies_ms, *missing], percent, method="higher"))


Seen = Callable[[int, int, bytes], None]
"""Is called with the number of a request, the status of its answer, and the body."""


@dataclass(slots=True)
class _Client:
    """Connections and what waits for one."""

    host: str
    port: int
    most: int
    idle: list[_Connection] = field(default_factory=lambda: list[_Connection]())
    waiting: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])
    open: int = 0
    done: int = 0
    latencies: dict[int, float] = field(default_factory=dict[int, float])
    statuses: Counter[int] = field(default_factory=Counter[int])
    seen: Seen | None = None
    refused_since: float | None = None
    refused_s: float = 0.0

    def connected(self) -> None:
        """Notes that a connection was accepted."""
        if self.refused_since is not None:
            self.refused_s = max(self.refused_s, time.perf_counter() - self.refused_since)
            self.refused_since = None

    def refused(self) -> None:
        """Notes that a connection was refused."""
        if self.refused_since is None:
            self.refused_since = time.perf_counter()


class _Connection(asyncio.Protocol):
    def __init__(self, client: _Client, requests: Sequence[bytes]) -> None:
        self._client, self._requests = client, requests
        self._due: float | None = None
        self._number = 0
        self._received = b""
        self._needed = -1
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._client.connected()
        self._next()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def send(self, due: float, number: int) -> None:
        assert self._transport is not None
        self._due, self._number = due, number
        self._transport.write(self._requests[number % len(self._requests)])

    def data_received(self, data: bytes) -> None:
        self._received = self._received + data if self._received else data
        if self._needed < 0:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._received[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            self._needed = end + 4 + length
        if len(self._received) < self._needed or self._due is None:
            return
        status = int(self._received[9:12])
        client = self._client
        client.statuses[status] += 1
        if status == 200:
            client.latencies[self._number] = time.perf_counter() - self._due
        client.done += 1
        if client.seen is not None:
            client.seen(self._number, status, self._received[self._received.find(b"\r\n\r\n") + 4 :])
        self._due, self._received, self._needed = None, b"", -1
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        client = self._client
        client.open -= 1
        if self in client.idle:
            client.idle.remove(self)
        if self._due is not None:
            client.statuses[0] += 1
            client.done += 1

    def _next(self) -> None:
        if self._client.waiting:
            self.send(*self._client.waiting.popleft())
        else:
            self._client.idle.append(self)


async def open_loop(
    host: str,
    port: int,
    requests: Sequence[bytes],
    rate: float,
    seconds: float,
    seed: int,
    connections: int,
    seen: Seen | None = None,
) -> Load:
    """Sends requests in turn at the times of a Poisson process, and returns what became of them."""
    draw = random.Random(seed)
    due: list[float] = []
    at = draw.expovariate(rate)
    while at < seconds:
        due.append(at)
        at += draw.expovariate(rate)
    loop = asyncio.get_running_loop()
    client = _Client(host, port, connections, seen=seen)
    pending: set[asyncio.Task[None]] = set()

    async def connect() -> None:
        try:
            await loop.create_connection(lambda: _Connection(client, requests), host, port)
        except OSError:
            client.refused()
            client.open -= 1
            if client.waiting:
                client.waiting.popleft()
                client.statuses[0] += 1
                client.done += 1

    start = time.perf_counter()
    for number, after in enumerate(due):
        moment = start + after
        wait = moment - time.perf_counter()
        if wait > 0 or number % 64 == 0:
            await asyncio.sleep(max(0.0, wait))
        if client.idle:
            client.idle.pop().send(moment, number)
            continue
        client.waiting.append((moment, number))
        if client.open < client.most:
            client.open += 1
            task = loop.create_task(connect())
            pending.add(task)
            task.add_done_callback(pending.discard)
    until = time.perf_counter() + _GRACE_S
    while client.done < len(due) and time.perf_counter() < until:
        await asyncio.sleep(0.005)
    for each in list(client.idle):
        each.close()
    latencies = [1e3 * client.latencies[number] for number in sorted(client.latencies)]
    client.connected()
    return Load(len(due), seconds, dict(client.statuses), latencies, client.refused_s)


def measure(
    host: str,
    port: int,
    requests: Sequence[Request],
    rate: float,
    seconds: float,
    *,
    seed: int = 0,
    connections: int = CONNECTIONS,
    core: int | None = None,
) -> Load:
    """Runs an open loop in a process of its own, on a core of its own if one is named."""
    spec = {
        "host": host,
        "port": port,
        "requests": [base64.b64encode(each.encoded(f"{host}:{port}")).decode() for each in requests],
        "rate": rate,
        "seconds": seconds,
        "seed": seed,
        "connections": connections,
        "core": core,
    }
    done = subprocess.run(
        [sys.executable, "-m", "bench.serving.open_loop"],
        cwd=ROOT,
        input=json.dumps(spec),
        capture_output=True,
        text=True,
        check=True,
        timeout=seconds + _GRACE_S + 60,
    )
    found = json.loads(done.stdout)
    found["statuses"] = {int(status): count for status, count in found["statuses"].items()}
    return Load(**found)


def main() -> None:
    spec = json.load(sys.stdin)
    if spec["core"] is not None:
        os.sched_setaffinity(0, {spec["core"]})
    requests = [base64.b64decode(each) for each in spec["requests"]]
    found = asyncio.run(
        open_loop(
            spec["host"],
            spec["port"],
            requests,
            spec["rate"],
            spec["seconds"],
            spec["seed"],
            spec["connections"],
        )
    )
    json.dump(asdict(found), sys.stdout)


if __name__ == "__main__":
    main()
