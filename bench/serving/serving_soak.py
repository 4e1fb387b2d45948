"""Serves for long at 70 % of the capacity while versions arrive; then too many requests, killed workers, failing disks.

The server has two workers on one core, the client has another. The client is an open loop, and keeps every answer: each
prediction is compared, bit by bit, with that of the checkpoint which its version names. A request is a batch, as the
rows beside a row may change its last bits. Versions arrive in all phases:

1. the soak: 70 % of the capacity, the rate at which the p99 stays within a bound;
2. the overload: five times the capacity. A request has the bound of the p99 as its deadline in all phases;
3. the kills: 70 % again, and a worker is killed every 30 seconds. What a worker was answering is lost with it.

At the end a table of a server becomes unreadable, and the disk of another is full when a version arrives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.serving.open_loop import Load, measure
from bench.serving.servers import Server, cores, free_port, posts, serving, ziggurat_command
from bench.serving.soak.checked_load import Answer, checked_load
from bench.serving.soak.faults import full_disk, read_errors
from bench.serving.soak.followed_run import ROWS_OF_A_REQUEST, FollowedRun

ROWS, QUICK_ROWS = 60_000, 3_000
"""So many that an epoch has a step for each checkpoint."""
REQUESTS = 10
WORKERS = 2
P99_MS = 100.0
SHARE, OVERLOAD = 0.7, 5.0
UPDATE_EVERY_S, QUICK_UPDATE_EVERY_S = 5.0, 0.7
KILL_EVERY_S, QUICK_KILL_EVERY_S = 30.0, 1.5
SAMPLE_EVERY_S, QUICK_SAMPLE_EVERY_S = 5.0, 0.5
GROWTH_MIB, GROWTH_FILES = 64.0, 16.0


@dataclass(frozen=True, slots=True)
class Seconds:
    """How long each phase takes."""

    probe: float
    warm_up: float
    soak: float
    overload: float
    kills: float


LONG = Seconds(probe=4.0, warm_up=10.0, soak=1_200.0, overload=60.0, kills=95.0)
QUICK = Seconds(probe=0.4, warm_up=0.5, soak=2.0, overload=0.7, kills=2.0)


@dataclass(slots=True)
class _Phase:
    """A phase, and what happened in it."""

    load: Load
    answers: list[Answer]
    memory_mib: list[float] = field(default_factory=list[float])
    files: list[float] = field(default_factory=list[float])
    kills: int = 0

    @property
    def lost(self) -> int:
        """Requests that were not answered at all."""
        return self.load.offered - sum(count for status, count in self.load.statuses.items() if status)

    @property
    def p99(self) -> float:
        """The p99 of the requests that were admitted, in milliseconds."""
        latencies = self.load.latencies_ms
        return statistics.quantiles(latencies, n=100)[98] if len(latencies) > 1 else float("inf")


class _Soak:
    """A server that follows, with its load.

    Args:
        context: of the benchmark.
        run: what it follows.
        server: the server.
        port: its port.
        core: the core of the client.
    """

    def __init__(self, context: Context, run: FollowedRun, server: Server, port: int, core: int) -> None:
        self._quick, self._run, self._port, self._core = context.quick, run, port, core
        self._process = psutil.Process(server.process.pid)
        self._requests, self._phases = run.bodies(), 0

    def capacity(self, seconds: float) -> float:
        """Returns the greatest rate at which the p99 is within its bound."""

        def holds(rate: float) -> bool:
            found = measure("127.0.0.1", self._port, self._requests, rate, seconds, core=self._core)
            return found.all_answered and found.percentile(99) <= P99_MS

        low, high = 0.0, 50.0
        while holds(high):
            low, high = high, high * 1.6
            if self._quick:
                break
        for _ in range(0 if self._quick else 4):
            middle = (low + high) / 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return max(low, 20.0)

    def phase(self, rate: float, seconds: float, *, kill_every: float = 0.0) -> _Phase:
        """Loads the server while versions arrive."""
        found = _Phase(Load(0, seconds, {}, []), [])
        update = QUICK_UPDATE_EVERY_S if self._quick else UPDATE_EVERY_S
        sample = QUICK_SAMPLE_EVERY_S if self._quick else SAMPLE_EVERY_S

        def kill() -> None:
            found.kills += self._kill_worker()

        jobs = [_Job(update, self._run.put_next), _Job(sample, lambda: self._sample(found))]
        if kill_every:
            jobs.append(_Job(kill_every, kill))

        def tick(passed: float) -> None:
            for job in jobs:
                job.tick(passed)

        self._phases += 1
        found.load, found.answers = checked_load(
            self._port, self._requests, rate, seconds, seed=self._phases, core=self._core, tick=tick
        )
        return found

    def _sample(self, phase: _Phase) -> None:
        memory = files = 0
        for each in (self._process, *self._process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                memory += each.memory_full_info().uss
                files += each.num_fds() - len(each.net_connections("tcp"))
        phase.memory_mib.append(memory / 2**20)
        phase.files.append(float(files))

    def _kill_worker(self) -> int:
        """Kills a worker: a child with a connection of a client. Returns how many were killed."""
        for each in self._process.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(found.status == psutil.CONN_ESTABLISHED for found in each.net_connections("tcp")):
                    os.kill(each.pid, signal.SIGKILL)
                    return 1
        return 0


@dataclass(slots=True)
class _Job:
    """What is done every so many seconds."""

    every: float
    do: Callable[[], None]
    next: float = 0.0

    def tick(self, passed: float) -> None:
        if not self.next:
            self.next = self.every
        elif passed >= self.next:
            self.next += self.every
            self.do()


def run(context: Context) -> Result:
    seconds = QUICK if context.quick else LONG
    update, kill = (QUICK_UPDATE_EVERY_S, QUICK_KILL_EVERY_S) if context.quick else (UPDATE_EVERY_S, KILL_EVERY_S)
    checkpoints = 8 + int((seconds.soak + seconds.overload + seconds.kills) / update)
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="serving-soak-") as scratch:
        folder = Path(scratch).resolve()
        context.say(f"training with {checkpoints} checkpoints")
        run = FollowedRun.trained(folder, QUICK_ROWS if context.quick else ROWS, checkpoints, REQUESTS)
        port, (core, other) = free_port(), cores()
        options = ("--workers", str(WORKERS), "--follow", str(run.place), "--poll", "0.5")
        limits = ("--batch-rows", str(ROWS_OF_A_REQUEST), "--deadline-ms", str(int(P99_MS)))
        command = ziggurat_command(run.model.export, port, *options, *limits, exact=True)
        with serving(command, port, core, posts("/v1/predict", run.bodies()[0].body)) as server:
            soak = _Soak(context, run, server, port, other)
            soak.phase(20.0, seconds.warm_up)
            capacity = soak.capacity(seconds.probe)
            context.say(f"capacity: {capacity:.0f} requests/s")
            phases = {"soak": soak.phase(SHARE * capacity, seconds.soak)}
            _say(context, "soak", phases["soak"])
            phases["overload"] = soak.phase(OVERLOAD * capacity, seconds.overload)
            _say(context, "overload", phases["overload"])
            phases["kills"] = soak.phase(SHARE * capacity, seconds.kills, kill_every=kill)
            _say(context, "kills", phases["kills"])
            tracebacks = server.errors().count("Traceback")
        context.say("comparing the answers")
        wrong = {name: run.wrong(phase.answers) for name, phase in phases.items()}
        unreadable = read_errors(run, folder, core)
        full = full_disk(run, folder, core)
        run.close()
    arrived = {step for phase in phases.values() for step in run.freshness(phase.answers)}
    fresh = tuple(run.freshness(phases["soak"].answers).values()) or (float("inf"),)
    before, after = phases["soak"], phases["overload"]
    figures = [
        Figure("capacity", "req/s", (capacity,), f"of {ROWS_OF_A_REQUEST} rows, with a p99 within {P99_MS:g} ms"),
        Figure("wrong", "answers", (float(sum(wrong.values())),), "not to the bit those of the version that they name"),
        Figure(
            "lost", "requests", (float(before.lost + after.lost),), "in the soak and the overload: without an answer"
        ),
        Figure("refused_in_soak", "%", (100 * _refused(before),), "answered with 503"),
        Figure("p99.soak", "ms", (before.p99,)),
        Figure("p99.overload", "ms", (after.p99,), "of the requests that were admitted"),
        Figure("p99.over_soak", "x", (after.p99 / before.p99,)),
        Figure("memory_growth", "MiB", (_growth(before.memory_mib),), "from the first to the last quarter of the soak"),
        Figure("files_growth", "descriptors", (_growth(before.files),), "likewise, without connections"),
        Figure("versions", "", (float(len(arrived)),), f"that answered; {len(run.put_at)} checkpoints arrived"),
        Figure("fresh", "s", fresh, "from the arrival of a checkpoint to the first answer of its version"),
        Figure("connections_refused", "s", (max(each.load.refused_s for each in phases.values()),), "the longest time"),
        Figure("killed", "workers", (float(phases["kills"].kills),)),
        Figure("lost_with_workers", "requests", (float(phases["kills"].lost),), "that a killed worker was answering"),
        Figure("tracebacks", "", (float(tracebacks),), "in the server's log"),
        Figure("unreadable", "", (float(unreadable.is_right),), "1: refusals name the table, the rest is served right"),
    ]
    if full is not None:
        good = full.named and full.caught_up and not full.wrong
        figures.append(Figure("full_disk", "", (float(good),), "1: named, the version before stayed, and it caught up"))
    cases = [("phase", "seconds", "offered", "answers by status", "p50", "p99", "p99.9", "wrong")]
    cases += [_case(name, phase, wrong[name]) for name, phase in phases.items()]
    notes = (
        f"{WORKERS} workers on one core, the client on another; {REQUESTS} requests of {ROWS_OF_A_REQUEST} rows",
        f"a checkpoint every {update:g} s; soak at {100 * SHARE:g} % of the capacity, overload at {OVERLOAD:g} times",
        f"without the file of the table {unreadable.table!r} {unreadable.refused} requests were refused by its name; "
        f"of {unreadable.known} whose rows had been asked for, {unreadable.served} were answered from caches",
        *(() if full is not None else ("no small file system can be mounted here, so no disk was full",)),
    )
    return Result(tuple(figures), 0, 1, notes, cases=tuple(cases))


def _refused(phase: _Phase) -> float:
    return phase.load.statuses.get(503, 0) / max(1, phase.load.offered)


def _growth(samples: list[float]) -> float:
    """Returns by how much the median of the last quarter exceeds that of the first."""
    part = max(1, len(samples) // 4)
    return statistics.median(samples[-part:]) - statistics.median(samples[:part]) if samples else 0.0


def _case(name: str, phase: _Phase, wrong: int) -> tuple[str, ...]:
    load = phase.load
    times = sorted(load.latencies_ms) or [float("inf")]
    shares = [f"{times[min(len(times) - 1, int(share * len(times)))]:.1f} ms" for share in (0.5, 0.99, 0.999)]
    statuses = ", ".join(f"{status or 'none'}: {count:,}" for status, count in sorted(load.statuses.items()))
    return (name, f"{load.seconds:g}", f"{load.offered:,}", statuses, *shares, str(wrong))


def _say(context: Context, name: str, phase: _Phase) -> None:
    context.say(" | ".join(_case(name, phase, 0)[:-1]))


SERVING_SOAK = Benchmark(
    name="serving_soak",
    claim="A server that follows its training answers for long without a wrong or lost answer, also when it is "
    "overloaded, when its workers are killed and when its disks fail.",
    targets={
        "wrong": Target(0, "at most"),
        "lost": Target(0, "at most"),
        "p99.over_soak": Target(2.0, "at most"),
        "memory_growth": Target(GROWTH_MIB, "at most"),
        "files_growth": Target(GROWTH_FILES, "at most"),
        "connections_refused": Target(1.0, "at most"),
        "tracebacks": Target(0, "at most"),
        "unreadable": Target(1.0),
        "full_disk": Target(1.0),
    },
    depends_on=("bench/serving/serving_soak.py", "bench/serving/soak/checked_load.py", "src/ziggurat/cli/serve.py"),
    run=run,
)
