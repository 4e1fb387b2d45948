"""Open-loop load on a server: ``python -m bench.serving.sdm.load`` with a plan in JSON on its input.

Requests begin at times that are drawn before (a Poisson process), whether or not earlier ones were answered; a latency
counts from the drawn time, so that a slow answer also costs those that wait behind it. No request is sent twice.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from bench.serving.sdm.access import BAG, Skew, spread


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent.

    Attributes:
        url: the server.
        users, items: rows of the tables.
        candidates: B.
        rate: requests a second.
        seconds: for how long.
        seed: of ids and times.
        connections: connections at most.
        ends, lookups: the skew.
    """

    url: str
    users: int
    items: int
    candidates: int
    rate: float
    seconds: float
    seed: int
    connections: int = 64
    ends: tuple[float, ...] = ()
    lookups: tuple[float, ...] | None = None

    def bodies(self, count: int) -> list[bytes]:
        """Draws requests to rank."""
        random = np.random.default_rng(self.seed)
        skew = Skew(tuple(self.ends), None if self.lookups is None else tuple(self.lookups))
        users = spread(skew.ranks(random, count, self.users), self.users)
        items = spread(skew.ranks(random, count * (self.candidates + BAG), self.items), self.items)
        found: list[bytes] = []
        for user, some in zip(users.tolist(), items.reshape(count, -1).tolist(), strict=True):
            candidates = ",".join(f'{{"item":{each}}}' for each in some[BAG:])
            context = json.dumps({"user": user, "liked": some[:BAG]})
            found.append(f'{{"context":{context},"candidates":[{candidates}]}}'.encode())
        return found


async def _run(load: Load) -> dict[str, Any]:
    random = np.random.default_rng(load.seed + 1)
    count = max(1, round(load.rate * load.seconds))
    times = np.cumsum(random.exponential(1 / load.rate, count))
    address = urlsplit(load.url)
    head = f"POST /v1/rank HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\nContent-Length: "
    requests = [head.encode() + str(len(body)).encode() + b"\r\n\r\n" + body for body in load.bodies(count)]
    queue: asyncio.Queue[int | None] = asyncio.Queue()
    latencies = np.full(count, np.inf)
    statuses: dict[str, int] = {}
    began = time.perf_counter() + 0.2

    async def connection() -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        while (number := await queue.get()) is not None:
            writer.write(requests[number])
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", answer, re.I)
            await reader.readexactly(int(length[1]) if length else 0)
            status = answer[9:12].decode()
            statuses[status] = statuses.get(status, 0) + 1
            if status == "200":
                latencies[number] = time.perf_counter() - began - times[number]
        writer.close()

    workers = [asyncio.create_task(connection()) for _ in range(load.connections)]
    for number in range(count):
        wait = began + times[number] - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        queue.put_nowait(number)
    for _ in workers:
        queue.put_nowait(None)
    await asyncio.gather(*workers)
    took = time.perf_counter() - began
    found = {f"p{share:g}": float(np.quantile(latencies, share / 100, method="higher")) for share in (50, 99, 99.9)}
    return {**found, "answered": statuses.get("200", 0), "requests": count, "seconds": took}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_run(Load(**json.loads(sys.stdin.read()))))))
