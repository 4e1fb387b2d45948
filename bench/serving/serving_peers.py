"""Requests a second at equal p99 of ziggurat's server and of three that a team would build, with the same model.

The peers are FastAPI around ONNX Runtime, FastAPI around eager PyTorch, and LitServe around ONNX Runtime, each as its
documentation advises; of FastAPI's two kinds of endpoint, functions in threads and in the event loop, the better one
counts. Their hand-written encoding is of dictionaries (:mod:`bench.serving.peers.encoding`). Every server has one core
and the client has another. The rate is the highest at which an open loop sees a p99 within the bound.
"""

from __future__ import annotations

import functools
import http.client
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.serving.open_loop import Load, Request, measure
from bench.serving.peer_model import PeerModel, requests_of, write_peer_model
from bench.serving.servers import compile_dense, cores, free_port, posts, serving, ziggurat_command

PYTHON = ROOT / ".venv-peers" / "bin" / "python"
PEERS = {
    "onnx": ("fastapi_server", "onnx"),
    "onnx_async": ("fastapi_server", "onnx", "async"),
    "torch": ("fastapi_server", "torch"),
    "torch_async": ("fastapi_server", "torch", "async"),
    "litserve": ("litserve_server",),
}
P99_MS = {"b1": 25.0, "b100": 100.0}
"""Bounds of the p99 of requests of one row, and of those to rank 100 candidates."""
CANDIDATES = 100
ROWS, QUICK_ROWS = 200_000, 3_000
BODIES = 20_000
"""Rows that are asked for, so that a server that remembers values meets new ones too."""
STEPS, QUICK_STEPS = 300, 3
SECONDS, QUICK_SECONDS = 5.0, 0.5
ROUNDS = 2
START = {"b1": 100.0, "b100": 20.0}
_MORE, _STEPS = 1.6, 4
"""The factor by which the rate rises until the bound is passed, and how often the rest is halved."""
OVER_BEST = 1.5


@dataclass(frozen=True, slots=True)
class Server:
    """A server.

    Attributes:
        name: its name.
        command: starts it, given a port.
        paths: case -> the path that is asked.
    """

    name: str
    command: Callable[[int], list[str]]
    paths: dict[str, str]


def run(context: Context) -> Result:
    seconds = QUICK_SECONDS if context.quick else SECONDS
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="serving-peers-") as scratch:
        rows, steps = (QUICK_ROWS, QUICK_STEPS) if context.quick else (ROWS, STEPS)
        model = write_peer_model(Path(scratch).resolve(), rows, steps)
        compiled = "dense part by the graph" if context.quick else compile_dense(model.export)
        servers = [_ours(model), *_peers(model)]
        bodies = {"b1": model.predict_bodies(BODIES), "b100": model.rank_bodies(BODIES // CANDIDATES, CANDIDATES)}
        answers = {server.name: _sample(server, bodies["b1"][:20]) for server in servers}
        differences = {name: float(np.abs(found - answers["ziggurat"]).max()) for name, found in answers.items()}
        rates: dict[str, dict[str, list[float]]] = {case: {each.name: [] for each in servers} for case in bodies}
        for number in range(1 if context.quick else ROUNDS):
            for server in servers:
                for case in bodies:
                    found = capacity(server, case, bodies[case], seconds, seed=number, quick=context.quick)
                    rates[case][server.name].append(found)
                    context.say(f"{server.name} {case}: {found:,.0f} requests/s")
    figures: list[Figure] = []
    for case, of_server in rates.items():
        figures += [
            Figure(f"{case}.{name}", "requests/s", tuple(values), f"p99 within {P99_MS[case]:g} ms")
            for name, values in of_server.items()
        ]
        peers = [of_server[each.name] for each in servers[1:]]
        if peers:
            best = [max(values) for values in zip(*peers, strict=True)]
            ratios = tuple(mine / max(other, 1e-9) for mine, other in zip(of_server["ziggurat"], best, strict=True))
            figures.append(Figure(f"{case}.over_best", "x", ratios, "of the best peer in the same round"))
    figures.append(
        Figure("largest_difference", "", (max(differences.values()),), "of the peers' predictions from ours, 20 rows")
    )
    notes = (
        f"DeepFM on {rows:,} rows of the generated log; one core for each server, another for the client",
        f"open loop of {seconds:g} s for each rate; rounds in turns; ziggurat as `ziggurat serve` with its defaults",
        f"of ziggurat: {compiled}",
    )
    return Result(tuple(figures), 0, len(rates["b1"]["ziggurat"]), notes, _versions())


def _ours(model: PeerModel) -> Server:
    paths = {"b1": "/v1/predict", "b100": "/v1/rank"}
    return Server("ziggurat", lambda port: ziggurat_command(model.export, port), paths)


def _peers(model: PeerModel) -> list[Server]:
    def command(module: str, *more: str, port: int) -> list[str]:
        return [str(PYTHON), "-m", f"bench.serving.peers.{module}", str(model.peers), str(port), *more]

    paths = {"b1": "/predict", "b100": "/rank"}
    if not PYTHON.exists():
        return []  # a smoke run then has one server; a whole run misses its figures, and falls short
    return [Server(name, lambda port, parts=parts: command(*parts, port=port), paths) for name, parts in PEERS.items()]


def _sample(server: Server, bodies: list[bytes]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Returns what a server predicts for the first label."""
    port, (core, _) = free_port(), cores()
    found: list[float] = []
    with serving(server.command(port), port, core, posts(server.paths["b1"], bodies[0])):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for body in bodies:
            connection.request("POST", server.paths["b1"], body, {"Content-Type": "application/json"})
            found += json.loads(connection.getresponse().read())["predictions"]["click"]
        connection.close()
    return np.array(found)


def capacity(server: Server, case: str, bodies: list[bytes], seconds: float, *, seed: int, quick: bool) -> float:
    """Returns the highest rate at which a server's p99 stays within the bound and every request is answered."""
    port, (core, other) = free_port(), cores()
    requests = requests_of(bodies, server.paths[case])
    with serving(server.command(port), port, core, posts(server.paths[case], bodies[0])):
        ask = functools.partial(_load, port, requests, seconds, other)
        ask(START[case], seed=seed)  # warms up
        if quick:
            return ask(START[case], seed=seed).rate
        return highest_rate(lambda rate: _within(lambda: ask(rate, seed=seed), P99_MS[case]), START[case])


def _load(port: int, requests: list[Request], seconds: float, core: int, rate: float, *, seed: int) -> Load:
    return measure("127.0.0.1", port, requests, rate, seconds, seed=seed, core=core)


def _within(load: Callable[[], Load], bound_ms: float) -> bool:
    """Whether the p99 is within a bound; asked twice, as this machine has other work at times."""
    return load().percentile(99) <= bound_ms or load().percentile(99) <= bound_ms


def highest_rate(holds: Callable[[float], bool], start: float) -> float:
    """Returns the highest rate that holds, to within a twenty-fifth."""
    low, high = 0.0, start
    while holds(high):
        low, high = high, high * _MORE
    if not low:
        return 0.0
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _versions() -> dict[str, str]:
    import subprocess

    if not PYTHON.exists():
        return {}
    code = (
        "import importlib.metadata as m, json; "
        "print(json.dumps({n: m.version(n) for n in ('fastapi', 'uvicorn', 'onnxruntime', 'litserve', 'torch')}))"
    )
    return json.loads(subprocess.run([str(PYTHON), "-c", code], capture_output=True, text=True, check=True).stdout)


SERVING_PEERS = Benchmark(
    name="serving_peers",
    claim="How many requests the server answers at equal p99 beside FastAPI and LitServe around ONNX Runtime or eager "
    "PyTorch; asked is half as many again as the best of them.",
    targets={f"{case}.over_best": Target(OVER_BEST) for case in P99_MS},
    depends_on=(
        "bench/serving/serving_peers.py",
        "src/ziggurat/serving/http/batching/batcher.py",
        "src/ziggurat/serving/http/gate.py",
        "src/ziggurat/serving/model/plain_rows.py",
    ),
    run=run,
)
