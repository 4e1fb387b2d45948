"""Disks that fail under a server: a table that cannot be read, and no space for a version."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.serving.open_loop import Request
from bench.serving.servers import free_port, posts, serving, ziggurat_command
from bench.serving.soak.checked_load import Answer
from bench.serving.soak.followed_run import FollowedRun, put_checkpoint
from ziggurat.serving.artefact.manifest import TABLES, Manifest

WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class ReadErrors:
    """What a server answered after the file of a table was lost.

    Attributes:
        table: the table.
        refused: answers that refused with its name.
        unnamed: other answers that were not predictions.
        known: requests whose rows were in memory and in caches.
        served: those of them that were still answered with the right bits; rows of the others were not in a cache.
        wrong: answers with other bits.
    """

    table: str
    refused: int
    unnamed: int
    known: int
    served: int
    wrong: int

    @property
    def is_right(self) -> bool:
        """Whether all refusals name the table, and what its caches hold was served."""
        return self.refused > 0 and not self.unnamed and self.served > 0 and not self.wrong


def read_errors(run: FollowedRun, scratch: Path, core: int) -> ReadErrors:
    """Serves with a table on disk, and takes its file away."""
    export, port = scratch / "unreadable", free_port()
    shutil.copytree(run.model.export, export)
    manifest = Manifest.read(export)
    memory = sum(entry.layout(manifest.precision).bytes for entry in manifest.tables) * 7 // 10
    requests = run.bodies()
    command = ziggurat_command(export, port, "--memory", str(memory), exact=True)
    with serving(command, port, core, posts("/v1/predict", requests[0].body)):
        status = json.loads(_asked(port, "GET", "/admin/status")[1])
        on_disk = [table["name"] for table in status["tables"] if table["place"].startswith("disk")]
        entry = max((each for each in manifest.tables if each.name in on_disk), key=lambda each: each.rows)
        known = requests[: len(requests) // 2]
        for each in known * 3:
            _post(port, each)
        (export / TABLES / entry.file).write_bytes(b"")
        after = [(number, *_post(port, each)) for number, each in enumerate(known)]
        answered = [Answer(number, status, 1, 0.0, body) for number, status, body in after if status == 200]
        others = [_post(port, _one_row(row)) for row in run.model.rows[-200:]]
        others += [(status, body) for _, status, body in after if status != 200]
    refused = [json.loads(body) for status, body in others if status == 503]
    named = sum(each["code"] == "table_unreadable" and repr(entry.name) in each["error"] for each in refused)
    unnamed = sum(status != 200 for status, _ in others) - named
    wrong = run.wrong(answered)
    return ReadErrors(entry.name, named, unnamed, len(known), len(answered) - wrong, wrong)


@dataclass(frozen=True, slots=True)
class FullDisk:
    """What a server did whose disk was full when a version arrived.

    Attributes:
        named: whether it said so.
        served: answers of the version before, meanwhile, with the right bits.
        wrong: others.
        caught_up: whether it took the version when there was space again.
    """

    named: bool
    served: int
    wrong: int
    caught_up: bool


def full_disk(run: FollowedRun, scratch: Path, core: int) -> FullDisk | None:
    """Serves with versions on a full file system; None where none can be mounted."""
    place, port = scratch / "followed-full", free_port()
    put_checkpoint(run.run, run.steps[0], place)
    requests = run.bodies()
    with _small_disk(scratch / "disk", 96) as disk:
        if disk is None:
            return None
        options = ("--follow", str(place), "--poll", "0.1", "--versions", str(disk / "versions"))
        command = ziggurat_command(run.model.export, port, *options, "--batch-rows", "8", exact=True)
        with serving(command, port, core, posts("/v1/predict", requests[0].body)):
            _until(lambda: _versions(port)["updates"]["checked_at"] > 0)
            filler = disk / "filler"
            with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
            put_checkpoint(run.run, run.steps[1], place)
            named = _until(lambda: "disk_full" in _versions(port)["updates"]["failures"])
            found = [(number, *_post(port, each)) for number, each in enumerate(requests)]
            answers = [Answer(number, status, 1, 0.0, body) for number, status, body in found]
            old = [each for each in answers if each.status == 200 and _step(each) == run.steps[0]]
            wrong = run.wrong(old) + len(answers) - len(old)
            filler.unlink()
            subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
            caught_up = _until(lambda: _versions(port)["current"].startswith(f"{run.steps[1]}-"))
    return FullDisk(named, len(old), wrong, caught_up)


@contextlib.contextmanager
def _small_disk(mount: Path, size_kib: int) -> Generator[Path | None]:
    """A file system in memory of that size; yields None where mounting is not allowed."""
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        yield None
        return
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def _step(answer: Answer) -> int:
    return json.loads(answer.body)["model"]["step"]


def _versions(port: int) -> dict[str, Any]:
    return json.loads(_asked(port, "GET", "/admin/versions")[1])


def _until(holds: Any) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not (found := holds()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return bool(found)


def _one_row(row: dict[str, Any]) -> Request:
    return Request("/v1/predict", json.dumps({"rows": [row]}).encode())


def _post(port: int, request: Request) -> tuple[int, str]:
    return _asked(port, "POST", request.path, request.body)


def _asked(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path, body or None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
