"""A small export, and servers of it in processes of their own."""

from __future__ import annotations

import atexit
import contextlib
import csv
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa

from tests.commands import Command
from tests.training.conftest import config_values, write_log
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.data.readers.rows_in_memory import to_arrow
from ziggurat.data.readers.table_reader import read_table
from ziggurat.exporting.export import export
from ziggurat.serving.http.access_log import AccessLog
from ziggurat.serving.http.app import application
from ziggurat.serving.http.doors import Doors
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.served_model import ServedModel
from ziggurat.serving.http.server import WorkerServer, run_worker
from ziggurat.serving.http.workers import listening_socket
from ziggurat.serving.model.scorer import Scored
from ziggurat.serving.versions.folder import VersionFolder
from ziggurat.training import api
from ziggurat.training.experiment import Experiment

TOKEN = "d" * 64
ADMIN = "e" * 64


@dataclass(frozen=True)
class Exported:
    """An export, with rows of the log that it was trained with."""

    folder: Path
    rows: list[dict[str, Any]]
    model: ServedModel

    def scored(self, rows: list[dict[str, Any]]) -> Scored:
        """Returns the predictions of the scorer for rows that are given alone."""
        needed = self.model.raw_schema
        return self.model.scorer.score(read_table(to_arrow(rows, needed), needed))

    def predictions(self, rows: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
        return self.scored(rows).predictions_BT


@functools.cache
def exported() -> Exported:
    """Trains and exports a small model, once a process."""
    root = Path(tempfile.mkdtemp(prefix="ziggurat-serving-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    write_log(root / "log.csv")
    values = config_values(root)
    changes = {
        "training.epochs": 1,
        "data.labels": [{"name": "click"}, {"name": "liking", "kind": "ordinal"}],
    }  # fmt: skip
    for path, value in changes.items():
        set_by_path(values, path, value)
    with (root / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with (root / "log.csv").open("w", newline="") as file:
        out = csv.DictWriter(file, [*rows[0], "liking"])
        out.writeheader()
        out.writerows({**row, "liking": 1 + int(row["item"]) % 3} for row in rows)
    run = api.train(parse_config(Experiment, values), str(root / "run"), prepared=str(root / "prepared"))
    folder = root / "export"
    export(run.run.folder, folder, prepared=root / "prepared")
    return Exported(folder, [_typed(row) for row in rows[:400]], ServedModel.open(folder))


def _typed(row: dict[str, str]) -> dict[str, Any]:
    lists = {name: [int(each) for each in row[name].split("|") if each] for name in ("tags", "history")}
    age = float(row["age"]) if row["age"] else None
    return {"user": row["user"], "item": int(row["item"]), "age": age, **lists}


@dataclass
class Running:
    """A server in a process of its own."""

    url: str
    process: Command
    client: httpx.Client
    _lines: str = ""

    def lines(self) -> str:
        """Returns what it has logged so far."""
        self._lines += self.process.said()[1]
        return self._lines

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ends it with a signal; returns its status."""
        self.process.send_signal(number)
        return self.process.wait(60)


@contextlib.contextmanager
def running(
    folder: Path, *options: str, verify: Any = True, headers: dict[str, str] | None = None
) -> Generator[Running]:
    """Runs ``ziggurat serve`` on a free port until the end of the block; it compiles nothing unless told to."""
    if "--compile" not in options:
        options = ("--no-compile", *options)
    process = Command("serve", str(folder), "--port", "0", *options, environment={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        said, log = "", ""
        while not said.endswith("\n"):
            now = process.said()
            said, log = said + now[0], log + now[1]
            assert process.poll() is None, f"{said!r} {log[-2000:]}"
            time.sleep(0.01)
        url = said.strip()
        assert url.startswith("http"), f"{url!r} {log[-2000:]}"
        with httpx.Client(base_url=url, verify=verify, headers=headers, timeout=60, trust_env=False) as client:
            yield Running(url, process, client, log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def served_here(
    model: ServedModel,
    limits: ServingLimits = ServingLimits(),  # noqa: B008 - immutable
    log: AccessLog | None = None,
    versions: VersionFolder | None = None,
) -> Generator[str]:
    """Serves a model in a thread of this process; gives its URL."""
    listening = threading.Event()
    app = application(model, limits=limits, log=log or AccessLog(None), versions=versions)
    server = WorkerServer(app, Doors(), limits, listening.set)
    with listening_socket("127.0.0.1", 0) as found:
        thread = threading.Thread(target=run_worker, args=(server, found))
        thread.start()
        try:
            assert listening.wait(60)
            yield f"http://127.0.0.1:{found.getsockname()[1]}"
        finally:
            server.drain()
            thread.join(60)


def arrow_stream(table: pa.Table, **options: Any) -> bytes:
    """Returns a table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@functools.cache
def exported_again() -> Path:
    """Exports the model of :func:`exported` at another precision, which is another version; once a process."""
    folder = exported().folder.with_name("export-int8")
    export(exported().folder.with_name("run"), folder, prepared=folder.with_name("prepared"), precision="int8")
    return folder
