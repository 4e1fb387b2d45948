"""Measures requests a second at equal p99 with tables in less and less memory, beside memory mapping and RocksDB.

Every server is a process on one core in its own control group, whose memory, the page cache included, is its budget and
what the program itself takes. The load is open (:mod:`bench.serving.sdm.load`), from a process on another core. The
rate of a server is the greatest at which the 99th percentile of latencies stays within a bound, the same for all; it is
searched in each round by doubling and halving. One server runs at a time. The answers to the same requests are compared
bit by bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.serving.sdm.access import BAG, EXPONENT, ITEMS, USERS, Skew
from bench.serving.sdm.big_export import DIM, make
from bench.serving.sdm.load import Load
from bench.serving.servers import compile_dense, compile_option, cores, on_core
from bench.small_memory import limited, unavailable
from bench.system.row_contestants import without_rocksdb
from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.serving.artefact.manifest import Manifest

ROWS = {USERS: 36_000_000, ITEMS: 22_000_000}
QUICK_ROWS = {USERS: 20_000, ITEMS: 10_000}
SHARES = (100, 50, 20, 10)
CANDIDATES = {1: 0.020, 100: 0.030, 1000: 0.100}
"""Candidates of a request -> the bound of the 99th percentile, seconds."""
PROGRAM = 800 * 2**20
"""Bytes of memory for a server's program beside its tables."""
ROUNDS, PROBE_S, QUICK_PROBE_S = 2, 4.0, 0.5
_FIRST_RATE = {1: 200.0, 100: 100.0, 1000: 25.0}
_STEPS = 4
"""Halvings of the interval that holds the rate."""


@dataclass(frozen=True, slots=True)
class Server:
    """A contestant.

    Attributes:
        name: ``ours_20``, ``mapped_20``, ``rocksdb_20``, …
        command: starts it.
        budget: bytes of memory for its tables.
    """

    name: str
    command: list[str]
    budget: int


def run(context: Context) -> Result:
    rows = QUICK_ROWS if context.quick else ROWS
    shares = (100, 20) if context.quick else SHARES
    bounds = {1: 5.0} if context.quick else CANDIDATES
    rounds = 1 if context.quick else ROUNDS
    skew = Skew.read(context.data)
    rates: dict[str, list[float]] = {}
    figures: list[Figure] = []
    cases: list[tuple[str, ...]] = [("server", "candidates", "at", "p50", "p99", "p99.9", "hits", "reads a request")]
    answers: dict[int, set[str]] = {}
    with tempfile.TemporaryDirectory(prefix="sdm-", dir=context.cache) as scratch:
        folder = Path(scratch)
        context.say(f"writing tables of {sum(rows.values()):,} rows")
        export = make(folder, rows, skew)
        compiled = "dense part by the graph" if context.quick else compile_dense(export)
        manifest = Manifest.read(export)
        size = sum(entry.layout(manifest.precision).bytes for entry in manifest.tables)
        servers = _servers(export, folder, size, shares, quick=context.quick)
        for number in range(rounds):
            for server in servers[number % len(servers) :] + servers[: number % len(servers)]:
                with _started(server) as url:
                    for count, bound in bounds.items():
                        probe = _Probe(context, url, rows, count, skew, number)
                        answers.setdefault(count, set()).add(probe.digest())
                        known = rates.get(f"b{count}.{server.name}") or rates.get(f"b{count}.ours_100")
                        rate = probe.rate(bound, known[-1] / 2 if known and known[-1] else _FIRST_RATE[count])
                        rates.setdefault(f"b{count}.{server.name}", []).append(rate)
                        context.say(f"round {number + 1}, {server.name}, B = {count}: {rate:.4g} requests/s")
                        dram = rates.get(f"b{count}.ours_100", [rate])[-1]
                        cases.append(_case(probe, server.name, count, max(1.0, dram / 2)))
    for name, samples in rates.items():
        figures.append(Figure(f"{name}.qps", "req/s", tuple(samples), "the p99 within its bound"))
    for count in bounds:
        dram = rates[f"b{count}.ours_100"]
        for share in shares[1:]:
            ours = rates[f"b{count}.ours_{share}"]
            of = tuple(100 * a / b for a, b in zip(ours, dram, strict=True))
            figures.append(Figure(f"b{count}.{share}.of_dram", "%", of, "of the rate with all tables in memory"))
        for peer in ("mapped", "rocksdb"):
            theirs = rates.get(f"b{count}.{peer}_20")
            if theirs is not None:
                over = tuple(a / max(b, 1e-9) for a, b in zip(rates[f"b{count}.ours_20"], theirs, strict=True))
                figures.append(Figure(f"b{count}.20.over_{peer}", "x", over))
    equal = float(all(len(found) == 1 for found in answers.values()))
    figures.append(Figure("answers_equal", "", (equal,), "1: those of all servers have the same bits"))
    law = f"Zipf's law with exponent {EXPONENT:g}" if skew.lookups is None else "production statistics (--data)"
    notes = (
        f"DeepFM with its default layers; tables of {size / 1e9:.2f} GB: {rows[USERS]:,} users, {rows[ITEMS]:,} items, "
        f"{DIM} numbers a row in int8; a request has a user, {BAG} items that the user liked, and B candidates",
        f"look-ups follow {law}",
        f"memory of a server: {PROGRAM / 2**20:.0f} MiB and its share of the tables; the page cache counts",
        compiled,
        "server and load on one core each; p50, p99 and p99.9 at half the rate of all tables in memory",
    )
    return Result(tuple(figures), 0, rounds, notes, {}, tuple(cases))


def _servers(export: Path, folder: Path, size: int, shares: tuple[int, ...], *, quick: bool) -> list[Server]:
    serve = [sys.executable, "-m", "ziggurat", "serve", str(export), "--port", "0", "--no-log", compile_option(export)]
    found: list[Server] = []
    for share in shares:
        budget = math.ceil(1.02 * size * share / 100) + 200_000 if share == 100 else size * share // 100
        found.append(Server(f"ours_{share}", [*serve, "--memory", str(budget)], budget))
    budget = size * 20 // 100
    found.append(Server("mapped_20", serve, budget))
    rocksdb = [sys.executable, "-m", "bench.serving.sdm.rocksdb_server", str(export), str(folder / "rocksdb")]
    if without_rocksdb() is None and not quick:
        rocks = [*rocksdb, str(budget)]
        subprocess.run([*rocks, "fill"], cwd=ROOT, check=True)
        found.append(Server("rocksdb_20", rocks, budget))
    return found


@contextlib.contextmanager
def _started(server: Server) -> Generator[str]:
    """Runs a server on the first core within its memory; yields its URL."""
    with contextlib.ExitStack() as stack:
        command = server.command
        if unavailable() is None:
            group = stack.enter_context(limited(PROGRAM + server.budget, f"sdm-{server.name}"))
            command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *command]
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with on_core(cores()[0]):
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, env=environment
            )
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url.startswith("http"):
                process.wait()
                log.seek(0)
                raise EnvironmentMismatch(f"{server.name} ended: {log.read()[-2000:]}", "run its command by hand")
            yield url
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


class _Probe:
    """The load on one server with one number of candidates."""

    def __init__(
        self, context: Context, url: str, rows: dict[str, int], candidates: int, skew: Skew, seed: int
    ) -> None:
        self._url, self._rows, self._candidates, self._skew = url, rows, candidates, skew
        self._seed = 1_000_000 * (seed + 1)
        self._seconds = QUICK_PROBE_S if context.quick else PROBE_S

    def load(self, rate: float, seconds: float | None = None) -> dict[str, Any]:
        """Sends requests at a rate; returns what the load process measured."""
        self._seed += 2
        plan = Load(
            self._url, self._rows[USERS], self._rows[ITEMS], self._candidates, rate, seconds or self._seconds,
            self._seed, 64, self._skew.ends, self._skew.lookups,
        )  # fmt: skip
        command = [sys.executable, "-m", "bench.serving.sdm.load"]
        with on_core(cores()[1]):
            found = subprocess.run(
                command, input=json.dumps(asdict(plan)), text=True, capture_output=True, check=True, cwd=ROOT
            )
        return json.loads(found.stdout)

    def rate(self, bound: float, first: float) -> float:
        """Returns the greatest rate whose 99th percentile is within a bound; ``first`` is the first that is tried."""
        rate, holds = first, 0.0
        self.load(rate)  # the caches of the processor, and those of rows that the statistics did not foresee
        for _ in range(10):
            if self._holds(rate, bound):
                holds, rate = rate, 2 * rate
            elif holds:
                break
            else:
                rate /= 4
            if self._seconds == QUICK_PROBE_S and holds:
                return holds
        low, high = holds, rate
        for _ in range(_STEPS if holds else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if self._holds(middle, bound) else (low, middle)
        return low

    def _holds(self, rate: float, bound: float) -> bool:
        """Whether the p99 is within a bound; asked twice, as this machine has other work at times."""
        return self.load(rate)["p99"] <= bound or self.load(rate)["p99"] <= bound

    def digest(self) -> str:
        """Returns a digest of the answers to some requests, each sent alone."""
        plan = Load(self._url, self._rows[USERS], self._rows[ITEMS], self._candidates, 1.0, 1.0, 5, 1,
                    self._skew.ends, self._skew.lookups)  # fmt: skip
        found = hashlib.sha256()
        for body in plan.bodies(20):
            request = urllib.request.Request(
                f"{self._url}/v1/rank", body, {"Content-Type": "application/json"}, method="POST"
            )
            with urllib.request.urlopen(request) as answer:
                values = json.load(answer)
            found.update(json.dumps([values["candidates"], values["scores"]]).encode())
        return found.hexdigest()

    def table_figures(self) -> dict[str, float]:
        """Returns the sums of the server's figures of tables on disk."""
        with urllib.request.urlopen(f"{self._url}/metrics") as answer:
            text = answer.read().decode()
        found: dict[str, float] = {}
        for name, value in re.findall(r"^ziggurat_table_(\w+)_total\{[^}]*\} (\S+)$", text, re.M):
            found[name] = found.get(name, 0.0) + float(value)
        return found


def _case(probe: _Probe, name: str, candidates: int, rate: float) -> tuple[str, ...]:
    """Returns a line of the table of cases: latencies, hits and reads at a rate."""
    before = probe.table_figures()
    found = probe.load(rate)
    after = probe.table_figures()
    gained = {key: value - before.get(key, 0.0) for key, value in after.items()}
    looked_up = gained.get("hits", 0.0) + gained.get("misses", 0.0)
    hits = f"{100 * gained['hits'] / looked_up:.1f} %" if looked_up else "–"
    reads = f"{gained.get('reads', 0.0) / found['requests']:.2f}" if looked_up else "–"
    times = [f"{1e3 * found[key]:.2f} ms" for key in ("p50", "p99", "p99.9")]
    return (name, str(candidates), f"{rate:.0f}/s", *times, hits, reads)


SERVING_SDM = Benchmark(
    name="serving_sdm",
    claim="How many requests a server answers at equal p99 with a part of its tables in memory, beside all of them, "
    "mapped files and RocksDB; asked are nine tenths of the rate of all with a fifth of them, and twice that of the "
    "others.",
    targets={
        "answers_equal": Target(1.0),
        **{f"b{count}.20.of_dram": Target(90.0) for count in CANDIDATES},
        **{f"b{count}.20.over_{peer}": Target(2.0) for count in CANDIDATES for peer in ("mapped", "rocksdb")},
    },
    depends_on=(
        "bench/serving/serving_sdm.py",
        "bench/serving/sdm/load.py",
        "bench/serving/sdm/rocksdb_server.py",
        "src/ziggurat/cli/serve.py",
        "src/ziggurat/serving/tables/kernels.c",
        "src/ziggurat/serving/tables/row_cache.c",
        "src/ziggurat/storage/native.c",
    ),
    run=run,
    missing=lambda: unavailable() or without_rocksdb(),
)
