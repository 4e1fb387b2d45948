"""An open loop that keeps what was answered: ``python -m bench.serving.soak.checked_load`` with a plan on its input.

Answers of one version to one request have the same bytes, so each different one is kept once, with how often it came
and when it came first. The plan is that of :mod:`bench.serving.open_loop`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from bench.contestant import ROOT
from bench.serving.open_loop import CONNECTIONS, Load, Request, open_loop

TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that came once or several times.

    Attributes:
        request: which of the requests it answers.
        status: its status.
        count: how often it came.
        first: when it came first, on the clock of :func:`time.monotonic`.
        body: its body.
    """

    request: int
    status: int
    count: int
    first: float
    body: str


def checked_load(
    port: int,
    requests: Sequence[Request],
    rate: float,
    seconds: float,
    *,
    seed: int,
    core: int,
    tick: Callable[[float], None] = lambda _: None,
) -> tuple[Load, list[Answer]]:
    """Runs an open loop in a process of its own; returns what it saw, and all answers.

    Args:
        port: the port of a server on this machine.
        requests: the requests, which are sent in turn.
        rate: requests a second.
        seconds: for how long.
        seed: of the times.
        core: the core of the client.
        tick: called ten times a second with the seconds since the start.
    """
    host = "127.0.0.1"
    spec = {
        "port": port,
        "requests": [base64.b64encode(each.encoded(f"{host}:{port}")).decode() for each in requests],
        "rate": rate,
        "seconds": seconds,
        "seed": seed,
        "core": core,
    }
    command = [sys.executable, "-m", "bench.serving.soak.checked_load", json.dumps(spec)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = process.stdout.readline()
        began = time.monotonic()
        while started and (passed := time.monotonic() - began) < seconds:
            tick(passed)
            time.sleep(TICK_S)
        output, _ = process.communicate(timeout=120)
    if process.returncode:
        raise RuntimeError(f"the client ended with {process.returncode}")
    found = json.loads(output)
    load = found["load"]
    load["statuses"] = {int(status): count for status, count in load["statuses"].items()}
    return Load(**load), [Answer(*each) for each in found["answers"]]


def main() -> None:
    spec = json.loads(sys.argv[1])
    os.sched_setaffinity(0, {spec["core"]})
    requests = [base64.b64decode(each) for each in spec["requests"]]
    counts: dict[tuple[int, int, bytes], int] = {}
    first: dict[tuple[int, int, bytes], float] = {}

    def seen(number: int, status: int, body: bytes) -> None:
        key = number % len(requests), status, body
        if key not in counts:
            counts[key] = 0
            first[key] = time.monotonic()
        counts[key] += 1

    print("started", flush=True)
    load = asyncio.run(
        open_loop("127.0.0.1", spec["port"], requests, spec["rate"], spec["seconds"], spec["seed"], CONNECTIONS, seen)
    )
    answers = [[key[0], key[1], count, first[key], key[2].decode("utf-8", "replace")] for key, count in counts.items()]
    json.dump({"load": asdict(load), "answers": answers}, sys.stdout)


if __name__ == "__main__":
    main()
