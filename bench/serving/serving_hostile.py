"""Sends a server what no client should, while another client asks it at a steady rate.

The attacks come one after another: 10,000 malformed requests (:mod:`bench.serving.malformed`), Schemathesis over the
server's OpenAPI document, clients without a token, bodies that are too large, more connections than are allowed, and
clients that send a byte a second. Nothing but 503 may be a server's error, no traceback may be logged, and the steady
client must get every answer. The server has a core, the clients share the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.serving.malformed import malformed_requests
from bench.serving.open_loop import Load, measure, with_headers
from bench.serving.peer_model import requests_of, write_export
from bench.serving.servers import cores, free_port, posts, serving, ziggurat_command

MALFORMED, QUICK_MALFORMED = 10_000, 100
EXAMPLES, QUICK_EXAMPLES = 100, 2
"""Of Schemathesis for each operation, and each of good and bad requests."""
STRANGERS, LARGE, SLOW, CONNECTIONS = 500, 50, 150, 100
QUICK_SHARE = 0.1
RATE = 20.0
SECONDS, QUICK_SECONDS = 15.0, 0.5
SLICE_S, QUICK_SLICE_S = 2.0, 0.7
"""Seconds of the steady load beside an attack, which is repeated until the attack has ended."""
RECEIVE_S, QUICK_RECEIVE_S = 4.0, 1.0
GROWTH_MIB = 256.0
_TOKEN = "b" * 64
_HEADER = f"Authorization: Bearer {_TOKEN}\r\n"
_TIMEOUT_S = 30.0


def run(context: Context) -> Result:
    share = QUICK_SHARE if context.quick else 1.0
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="serving-hostile-") as scratch:
        folder = Path(scratch).resolve()
        model = write_export(folder, 3_000, 3)
        tokens = folder / "serving.tokens"
        tokens.write_text(f"shop predict - sha256:{hashlib.sha256(_TOKEN.encode()).hexdigest()}\n")
        tokens.chmod(0o600)
        port, (core, other) = free_port(), cores()
        options = ("--token-file", str(tokens), "--max-body-mib", "1", "--max-connections", str(CONNECTIONS))
        command = ziggurat_command(
            model.export, port, *options, "--receive-seconds", f"{QUICK_RECEIVE_S if context.quick else RECEIVE_S:g}"
        )
        bodies = model.predict_bodies(100)
        answers = posts("/v1/predict", bodies[0], {"Authorization": f"Bearer {_TOKEN}"})
        good = with_headers(requests_of(bodies, "/v1/predict"), _HEADER)
        seconds = QUICK_SECONDS if context.quick else SECONDS

        def steady(seconds: float) -> Load:
            return measure("127.0.0.1", port, good, RATE, seconds, connections=20, core=other)

        attacks: dict[str, Callable[[], Counter[int]]] = {
            "malformed": lambda: _sent(
                port, malformed_requests(model.rows, QUICK_MALFORMED if context.quick else MALFORMED, _HEADER)
            ),
            "openapi": lambda: _schemathesis(port, QUICK_EXAMPLES if context.quick else EXAMPLES),
            "strangers": lambda: _sent(port, _strangers(bodies[0], round(STRANGERS * share))),
            "too_large": lambda: _sent(port, _too_large(round(LARGE * share))),
            "too_many": lambda: _too_many(port, 2 * CONNECTIONS, 0.5 if context.quick else 2.0),
            "slow": lambda: _slow(port, round(SLOW * share)),
        }
        figures: list[Figure] = []
        cases: list[tuple[str, ...]] = [("attack", "answers by status; 0 is none", "steady client's p99")]
        with serving(command, port, core, answers) as server:
            process = psutil.Process(server.process.pid)
            before, memory = steady(seconds), process.memory_info().rss
            statuses, worst, lost = Counter[int](), 0.0, 0
            for name, attack in attacks.items():
                found, load = _beside(attack, steady, QUICK_SLICE_S if context.quick else SLICE_S)
                statuses += found
                lost += load.offered - len(load.latencies_ms)
                worst = max(worst, load.percentile(99))
                cases.append((name, _listed(found), f"{load.percentile(99):.0f} ms"))
                context.say(f"{name}: {_listed(found)}; steady client's p99 {load.percentile(99):.0f} ms, {lost} lost")
            after = steady(seconds)
            growth = (process.memory_info().rss - memory) / 2**20
            log = server.errors()
        faults = sum(count for status, count in statuses.items() if status >= 500 and status != 503)
        figures += [
            Figure("requests", "", (float(sum(statuses.values())),), "hostile requests that were sent"),
            Figure("server_errors", "answers", (float(faults),), "500 and above but 503"),
            Figure("tracebacks", "lines", (float(log.count("Traceback")),), "in the server's log"),
            Figure("lost", "requests", (float(lost),), "of the steady client, during all attacks"),
            Figure("growth", "MiB", (max(0.0, growth),), "of the server's memory"),
            Figure("p99_before", "ms", (before.percentile(99),)),
            Figure("p99_worst", "ms", (worst,), "of the attack that delayed the steady client most"),
            Figure("p99_after", "ms", (after.percentile(99),)),
        ]
    notes = (
        f"steady client: {RATE:g} requests of one row a second; {CONNECTIONS} connections and bodies of 1 MiB allowed",
        "attackers and the steady client share a core, which also delays the client's own clock",
    )
    return Result(tuple(figures), 0, 1, notes, cases=tuple(cases))


def _beside(
    attack: Callable[[], Counter[int]], steady: Callable[[float], Load], seconds: float
) -> tuple[Counter[int], Load]:
    """Returns what an attack got, and what a steady client saw meanwhile, in slices of some seconds."""
    done = threading.Event()
    loads: list[Load] = []

    def watch() -> None:
        while not loads or not done.is_set():
            loads.append(steady(seconds))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        found = attack()
    finally:
        done.set()
        watcher.join()
    statuses = sum((Counter(each.statuses) for each in loads), Counter[int]())
    latencies = [value for each in loads for value in each.latencies_ms]
    return found, Load(sum(each.offered for each in loads), seconds * len(loads), dict(statuses), latencies)


def _listed(found: Counter[int]) -> str:
    return ", ".join(f"{status}: {count:,}" for status, count in sorted(found.items()))


@contextlib.contextmanager
def _connected(port: int) -> Generator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), _TIMEOUT_S) as connection:
        yield connection


def _exchanged(port: int, content: bytes) -> int:
    """Sends bytes on a connection of their own, and returns the status of the answer; 0: none."""
    try:
        with _connected(port) as connection:
            with contextlib.suppress(OSError):  # the server may have answered and closed already
                connection.sendall(content)
                connection.shutdown(socket.SHUT_WR)
            received = b""
            while len(received) < 12 and (part := connection.recv(65_536)):
                received += part
    except OSError:
        return 0
    return int(received[9:12]) if received[9:12].isdigit() else 0


def _sent(port: int, requests: Iterable[bytes]) -> Counter[int]:
    """Sends requests by four clients at once."""
    with ThreadPoolExecutor(4) as pool:
        return Counter(pool.map(lambda each: _exchanged(port, each), requests))


def _strangers(body: bytes, count: int) -> list[bytes]:
    head = (
        f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    tokens = ("", "\r\nAuthorization: Bearer wrong", f"\r\nAuthorization: Basic {_TOKEN}", "\r\nAuthorization: Bearer")
    return [f"{head}{tokens[number % 4]}\r\n\r\n".encode() + body for number in range(count)]


def _too_large(count: int) -> list[bytes]:
    head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\n{_HEADER}Content-Type: application/json\r\n"
    announced = f"{head}Content-Length: {8 * 2**20}\r\n\r\n".encode() + b" " * 2**20
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 4
    many = f"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX-Long: {'x' * 100_000}\r\n\r\n".encode()
    return [(announced, chunked, many)[number % 3] for number in range(count)]


def _too_many(port: int, count: int, seconds: float) -> Counter[int]:
    """Opens more connections than are allowed, and holds them."""
    statuses = Counter[int]()
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(_connected(port)) for _ in range(count)]
        time.sleep(seconds)
        for each in opened:
            each.setblocking(False)
            try:
                received = each.recv(100)
            except BlockingIOError:
                received = b""
            except OSError:
                received = b""
            statuses[int(received[9:12]) if received[9:12].isdigit() else 0] += 1
    return statuses


def _slow(port: int, count: int) -> Counter[int]:
    """Sends heads and bodies byte by byte, until the server ends it."""
    head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\n{_HEADER}Content-Length: 1000\r\n".encode()

    def client(number: int) -> int:
        try:
            with _connected(port) as connection:
                connection.sendall(head if number % 2 else head + b"\r\n")
                for _ in range(20):
                    connection.settimeout(1.0)
                    try:
                        received = connection.recv(100)
                        return int(received[9:12]) if received[9:12].isdigit() else 0
                    except TimeoutError:
                        connection.sendall(b"x")
        except OSError:
            return 0
        return -1

    with ThreadPoolExecutor(CONNECTIONS // 2) as pool:
        return Counter(pool.map(client, range(count)))


def _schemathesis(port: int, examples: int) -> Counter[int]:
    """Runs Schemathesis in a process of its own; returns the answers by status, 999 for each failure that it names."""
    if importlib.util.find_spec("schemathesis") is None:
        return Counter()
    command = [sys.executable, "-m", "bench.serving.openapi_fuzz", str(port), str(examples), _TOKEN]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=1_800)
    if done.returncode:
        raise RuntimeError(f"schemathesis ended with {done.returncode}")
    return Counter({int(status): int(count) for status, count in (line.split() for line in done.stdout.splitlines())})


SERVING_HOSTILE = Benchmark(
    name="serving_hostile",
    claim="Nothing that a client sends makes the server fail, log a traceback, grow, or forget another client.",
    targets={
        "server_errors": Target(0, "at most"),
        "tracebacks": Target(0, "at most"),
        "lost": Target(0, "at most"),
        "growth": Target(GROWTH_MIB, "at most"),
    },
    depends_on=("bench/serving/serving_hostile.py", "bench/serving/openapi_fuzz.py", "src/ziggurat/cli/serve.py"),
    run=run,
)
