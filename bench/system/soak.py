"""Attacks a reader while it feeds a trainer and two good clients, and compares their rates with those before and after.

One reader serves a prepared dataset on loopback. A real training pulls its batches from it, and so do two clients,
which drop them. After a while without attackers, the attacks of :mod:`bench.system.attackers` begin, each in a process
of its own: three clients send 16 MB of bad JSON each, one sends tickets with a million ranges, one malformed tickets,
and one holds 200 answers that it does not read. They repeat all of it until the end. Then the rates are measured
without attackers again, as the machine may have become slower or faster meanwhile.

Attackers stand for other machines, so they run on cores of their own; what is measured is what they take from the
reader, not what their own work takes from this machine. With one core, they share it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.system.crash_training import SingleProcess, experiment
from ziggurat.core.files import write_json
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.data.ingest.loader import IngestLoader
from ziggurat.data.ingest.prepared import open_prepared
from ziggurat.data.ingest.processes import ReaderProcesses
from ziggurat.data.ingest.protocol import MAX_ROWS, BatchTicket, ReaderIdentity
from ziggurat.data.synthetic.config import CategoricalColumn, GeneratorConfig, LabelColumn
from ziggurat.data.synthetic.generate import generate
from ziggurat.training import api

ATTACKERS = ("bad_json", "bad_json", "bad_json", "many_ranges", "malformed", "stalled")
MINUTES, QUIET_SHARE = 5.0, 0.2
"""Minutes of attacks, and the minutes before and after them as a share of that."""
QUICK_S = 2.0
CLIENTS = 2
BATCH_SIZE = 1024
COLUMNS, TABLE_ROWS = 26, 2_000
ROWS, QUICK_ROWS = 200_000, 10_000
KEPT_SHARE = 50.0
GROWTH_MIB = 1024.0
WARM_UP_S = 120.0
_POLICY = "full"


@dataclass(slots=True)
class Client:
    """A client that pulls batches in a thread, epoch after epoch, and drops them.

    Attributes:
        rows: the rows that have arrived.
        notes: what it was told about its reader.
        error: what ended it.
    """

    loader: Callable[[Callable[[str], None]], IngestLoader]
    rows: int = 0
    notes: list[str] = field(default_factory=list[str])
    error: str = ""

    def run(self, stop: threading.Event) -> None:
        try:
            cursor, loader = Cursor(), self.loader(self.notes.append)
            while not stop.is_set():
                for batch, after in loader.epoch(cursor):
                    self.rows += batch.size
                    cursor = after
                    if stop.is_set():
                        return
        except Exception as error:  # noqa: BLE001 - any error is a failure of the service
            self.error = f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase measured: the rows per second of trainer and clients, and the reader's peak memory and threads."""

    rates: Mapping[str, float]
    resident_mib: float
    threads: int


def run(context: Context) -> Result:
    attack_s = QUICK_S if context.quick else 60 * MINUTES
    quiet_s = QUICK_S if context.quick else QUIET_SHARE * attack_s
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="soak-") as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch).resolve()
        others = stack.enter_context(_on_half_of_the_cores())
        dataset = _written(folder, QUICK_ROWS if context.quick else ROWS)
        served = functools.partial(open_prepared, dataset.folder)
        readers = stack.enter_context(ReaderProcesses(served, "127.0.0.1", 0, 1))
        (address,) = readers.addresses
        values = _experiment(folder)
        values["training"] |= {"readers": [address]}
        write_json(folder / f"{_POLICY}.json", values)
        trainer = stack.enter_context(_training(folder))
        _wait_until_all_run(trainer, ())  # clients that already pull batches would slow its start
        clients = [Client(functools.partial(_loader, dataset, address)) for _ in range(CLIENTS)]
        stack.enter_context(_running(clients))
        _wait_until_all_run(trainer, clients)
        watch = Watch(psutil.Process(readers.processes[0]), trainer, clients, context.say)
        before = watch.measure("undisturbed", quiet_s)
        with _attackers(address, _ticket(dataset), others) as attackers:
            attacked = watch.measure("attacked", attack_s)
        after = before if context.quick else watch.measure("undisturbed again", quiet_s)
    failed = [client.error for client in clients if client.error]
    kept = {name: 100 * attacked.rates[name] / ((before.rates[name] + after.rates[name]) / 2) for name in before.rates}
    lost = sum("lost" in note for client in clients for note in client.notes)
    notes = [f"good clients: {lost} requests were repeated; {failed or 'no'} errors"]
    notes += [f"{kind}: {made:,} requests, {answered:,} answered" for kind, made, answered in attackers]
    return Result(
        (
            *(Figure(f"{name}_kept", "%", (kept[name],), f"of {before.rates[name]:,.0f} rows/s") for name in kept),
            Figure("failed", "", (float(len(failed)),), "clients that ended with an error"),
            Figure("growth", "MiB", (attacked.resident_mib - before.resident_mib,), "of the reader's resident memory"),
            Figure("threads", "", (float(attacked.threads),), f"of the reader; {before.threads} without attackers"),
        ),
        0,
        1,
        (f"{attack_s:.0f} s of attacks, all processes on one machine", *notes),
    )


@dataclass(frozen=True, slots=True)
class Watch:
    """Measures the rates of a training and clients, and the memory of their reader."""

    reader: psutil.Process
    trainer: Callable[[], int]
    clients: Sequence[Client]
    say: Callable[[str], None]

    def measure(self, name: str, seconds: float) -> Phase:
        """Measures for some seconds."""
        first, started = self._rows(), time.monotonic()
        resident = threads = 0.0
        while (elapsed := time.monotonic() - started) < seconds:
            time.sleep(0.2)
            resident = max(resident, self.reader.memory_info().rss / 2**20)
            threads = max(threads, self.reader.num_threads())
        last = self._rows()
        rates = {each: (last[each] - first[each]) / elapsed for each in first}
        listed = ", ".join(f"{each} {rate:,.0f}" for each, rate in rates.items())
        self.say(f"{name}: {listed} rows/s; reader {resident:,.0f} MiB, {threads:.0f} threads")
        return Phase(rates, resident, int(threads))

    def _rows(self) -> dict[str, int]:
        return {"trainer": self.trainer(), **{f"client_{n}": each.rows for n, each in enumerate(self.clients, 1)}}


def _experiment(folder: Path) -> dict[str, Any]:
    """Returns the unparsed experiment of a training that does not end."""
    values = experiment(folder, _POLICY, 10**9)
    values["features"] = [{"name": f"c{n}", "kind": "categorical", "type": "integer"} for n in range(COLUMNS)]
    values["training"] |= {"batch_size": BATCH_SIZE, "save_every": 10**6, "log_every": 10}
    del values["planning"]["tables"]
    return values


def _written(folder: Path, rows: int) -> Dataset:
    """Writes a log, and prepares it."""
    values = _experiment(folder)
    columns = tuple(CategoricalColumn(name=each["name"], cardinality=TABLE_ROWS) for each in values["features"])
    labels = (LabelColumn(name="y", rate=0.3),)
    generate(GeneratorConfig(rows=rows, labels=labels, categorical=columns), folder / "log.csv")
    write_json(folder / f"{_POLICY}.json", values)
    return Dataset(api.prepare(api.load_experiment(folder / f"{_POLICY}.json"), folder / "served").folder)


def _loader(dataset: Dataset, address: str, note: Callable[[str], None]) -> IngestLoader:
    local = Loader(dataset.split("train"), dataset.schema, BATCH_SIZE, shuffle=True, prefetch=0)
    return IngestLoader(local, [address], "train", dataset.fingerprint, dataset.schema, note=note)


def _ticket(dataset: Dataset) -> str:
    """Returns a good ticket for as many rows as one may ask for, of which the attackers make bad ones."""
    local = Loader(dataset.split("train"), dataset.schema, BATCH_SIZE, shuffle=True, prefetch=0)
    steps = itertools.cycle([step.rows for step in local.steps(Cursor())])
    ranges = list(itertools.islice(steps, MAX_ROWS // BATCH_SIZE))
    identity = ReaderIdentity.of_this_process(dataset.fingerprint)
    return BatchTicket(identity, "train", local.order(0), ranges).to_bytes().decode()


@contextlib.contextmanager
def _training(folder: Path) -> Generator[Callable[[], int]]:
    """Trains in a process; yields a function that returns the rows that it has trained on."""
    run = folder / "run"
    process = SingleProcess(folder, _POLICY, run)

    def trained() -> int:
        assert process.alive(), f"the training has ended: {process.end()}"
        path = run / "metrics.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        steps = [json.loads(line)["step"] for line in lines[-2:-1]]  # the last one may be incomplete
        return BATCH_SIZE * (steps[0] if steps else 0)

    try:
        yield trained
    finally:
        process.kill(np.random.default_rng(0))


@contextlib.contextmanager
def _running(clients: Sequence[Client]) -> Generator[None]:
    stop = threading.Event()
    threads = [threading.Thread(target=each.run, args=(stop,), daemon=True) for each in clients]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _wait_until_all_run(trainer: Callable[[], int], clients: Sequence[Client]) -> None:
    deadline = time.monotonic() + WARM_UP_S
    while not trainer() or not all(each.rows for each in clients):
        assert not any(each.error for each in clients), [each.error for each in clients]
        assert time.monotonic() < deadline, f"the training or a client has not begun after {WARM_UP_S:.0f} s"
        time.sleep(0.1)


@contextlib.contextmanager
def _on_half_of_the_cores() -> Generator[list[int]]:
    """Runs this process and those that it starts on the first half of its cores; yields the others."""
    process = psutil.Process()
    cores = process.cpu_affinity()
    half = len(cores) // 2
    process.cpu_affinity(cores[:half] or cores)
    try:
        yield cores[half:]
    finally:
        process.cpu_affinity(cores)


@contextlib.contextmanager
def _attackers(address: str, ticket: str, cores: list[int]) -> Generator[list[tuple[str, int, int]]]:
    """Runs the attackers; the list has (kind, requests, answers) of each in the end."""
    counts: list[tuple[str, int, int]] = []
    processes: list[subprocess.Popen[str]] = []
    try:
        for kind in ATTACKERS:
            command = [sys.executable, "-m", "bench.system.attackers", kind, address]
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            processes.append(process)
            psutil.Process(process.pid).cpu_affinity(cores)
            stdin: Any = process.stdin
            stdin.write(f"{ticket}\n")
            stdin.flush()
        for process in processes:
            out: Any = process.stdout
            out.readline()  # it begins
        yield counts
        for kind, process in zip(ATTACKERS, processes, strict=True):
            last, _ = process.communicate(timeout=120)
            counts.append((kind, *json.loads(last).values()))
    finally:
        for process in processes:
            process.kill()
            process.wait()


SOAK = Benchmark(
    name="soak",
    claim="A reader under attack gives a trainer and two good clients at least half of their undisturbed rate.",
    targets={
        "trainer_kept": Target(KEPT_SHARE),
        "client_1_kept": Target(KEPT_SHARE),
        "client_2_kept": Target(KEPT_SHARE),
        "failed": Target(0, "at most"),
        "growth": Target(GROWTH_MIB, "at most"),
    },
    depends_on=("bench/system/soak.py", "bench/system/attackers.py"),
    run=run,
)
