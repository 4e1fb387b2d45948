"""Clients that attack a reader: `python -m bench.system.attackers KIND ADDRESS`, with a good ticket on stdin.

Each prints a line, attacks until its stdin is closed, and then prints how many requests it has made, and how many were
answered.
It imports nothing but Arrow, so that it starts at once and needs little memory.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

BAD_JSON_BYTES = 16 * 2**20
TICKET_RANGES = 10**6
STALLED = 200
SECONDS = 60.0
GRACE_SECONDS = 1.0
"""How long an attacker that is told to stop waits for the answer to its last request."""

Attack = Callable[[str, dict[str, Any], threading.Event], Iterator[bool]]
_ERRORS = (flight.FlightError, pa.ArrowException, OSError)


def bad_json(address: str, ticket: dict[str, Any], stop: threading.Event) -> Iterator[bool]:
    """Sends 16 MB that are no JSON, as fast as they are refused."""
    body = json.dumps(ticket).encode()[:-1]
    body += b" " * (BAD_JSON_BYTES - len(body))
    yield from _repeat(address, lambda: body, stop)


def many_ranges(address: str, ticket: dict[str, Any], stop: threading.Event) -> Iterator[bool]:
    """Asks for a million batches of one row in one ticket."""
    body = json.dumps({**ticket, "ranges": [[0, 1]] * TICKET_RANGES}).encode()
    yield from _repeat(address, lambda: body, stop)


def malformed(address: str, ticket: dict[str, Any], stop: threading.Event) -> Iterator[bool]:
    """Sends small tickets, each wrong in another way, and calls of methods and actions that do not exist."""
    order = ticket["order"]
    wrong: list[Any] = [
        [], None, {}, {"identity": 5}, {**ticket, "ranges": [[-1, 5]]}, {**ticket, "ranges": [[0, 2**62]]},
        {**ticket, "ranges": [[True, 5]]}, {**ticket, "ranges": []}, {**ticket, "split": "../secret"},
        {**ticket, "block": -1}, {**ticket, "block": 10**40}, {**ticket, "order": {**order, "pool_blocks": 10**12}},
        {**ticket, "order": {**order, "epoch": "x"}}, {**ticket, "identity": {**ticket["identity"], "protocol": 0}},
    ]  # fmt: skip
    bodies = itertools.cycle([*(json.dumps(each).encode() for each in wrong), b"\xff" * 1000, b"[" * 100_000, b""])
    yield from _repeat(address, lambda: next(bodies), stop)


def stalled(address: str, ticket: dict[str, Any], stop: threading.Event) -> Iterator[bool]:
    """Holds 200 answers on connections of their own without reading them, and opens those anew that are ended."""
    body = json.dumps(ticket).encode()
    held: dict[int, tuple[Any, Any]] = {}
    opened_at: dict[int, float] = {}
    while not stop.is_set():
        for number in range(STALLED):
            if stop.is_set():
                return
            if number in held and time.monotonic() - opened_at[number] < 5:
                continue
            held.pop(number, None)
            client = _client(address)
            try:
                answer = client.do_get(flight.Ticket(body), flight.FlightCallOptions(timeout=600))
                answer.read_chunk()
                held[number] = client, answer
                yield True
            except _ERRORS:
                yield False
            opened_at[number] = time.monotonic()
        stop.wait(0.1)


ATTACKS: dict[str, Attack] = {
    "bad_json": bad_json, "many_ranges": many_ranges, "malformed": malformed, "stalled": stalled,
}  # fmt: skip


def _repeat(address: str, body: Callable[[], bytes], stop: threading.Event) -> Iterator[bool]:
    """Sends one request after the other; yields whether it was answered."""
    client = _client(address)
    while not stop.is_set():
        try:
            answer = client.do_get(flight.Ticket(body()), flight.FlightCallOptions(timeout=SECONDS))
            while not stop.is_set():
                answer.read_chunk()
            yield True
        except StopIteration:
            yield True
        except _ERRORS:
            yield False


def _client(address: str) -> flight.FlightClient:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100)]
    return flight.FlightClient(address, generic_options=options)


def main() -> None:
    os.environ["GRPC_VERBOSITY"] = "NONE"
    kind, address = sys.argv[1:]
    ticket = json.loads(sys.stdin.readline())
    stop, counts, reporting = threading.Event(), {"made": 0, "answered": 0}, threading.Lock()

    def report() -> None:
        with reporting:
            print(json.dumps(counts), flush=True)
            os._exit(0)  # without waiting for answers that nobody reads

    def stop_when_told() -> None:
        sys.stdin.read()
        stop.set()
        time.sleep(GRACE_SECONDS)
        report()

    threading.Thread(target=stop_when_told, daemon=True).start()
    print("attacking", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        for was_answered in ATTACKS[kind](address, ticket, stop):
            counts["made"] += 1
            counts["answered"] += was_answered
    report()


if __name__ == "__main__":
    main()
