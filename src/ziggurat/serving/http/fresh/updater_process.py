"""The process that takes versions, beside the workers: started, replaced if it dies, ended with the server."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Generator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from ziggurat.checkpoint.store.store import Unreachable
from ziggurat.core.errors import DataError, ZigguratError
from ziggurat.serving.artefact.manifest import MANIFEST_FILE, Manifest
from ziggurat.serving.http.access_log import AccessLog
from ziggurat.serving.http.served_model import export_digest
from ziggurat.serving.server_process import start_process
from ziggurat.serving.versions.checkpoints import open_followed
from ziggurat.serving.versions.folder import VersionFolder
from ziggurat.serving.versions.updater import Following, run_updater

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 60.0
_STEADY_S = 60.0
"""An updater that ran so long is started again at once if it dies."""
_NICE = 10
"""It gives way to workers."""


@contextlib.contextmanager
def followed(export: Path, following: Following, log: bool) -> Generator[UpdaterProcess]:
    """Makes or opens the folder of versions, checks what is to be followed, and yields the process that will.

    Raises:
        ConfigError: the run is not that of the export, or cannot be followed.
        DataError: another server uses the folder of versions, or it is damaged or that of another export.
        RunFolderError: there is no such run.
    """
    out = AccessLog() if log else AccessLog(None)
    manifest = Manifest.open(export)
    try:
        open_followed(following.place, manifest, export)
    except Unreachable as error:
        out.event("follow_failed", kind="unreachable", problem=error.problem, hint=error.hint)
    at = (export / MANIFEST_FILE).stat().st_mtime
    folder = VersionFolder.create(following.versions, export_digest(export), manifest, at)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(folder.locked("server.lock", wait=False))
        except BlockingIOError:
            raise DataError(
                f"{folder.root}: another server uses this folder of versions", "name another folder with --versions"
            ) from None
        folder.forget_indexes()
        stack.callback(folder.forget_indexes, folder=True)
        yield UpdaterProcess(export, following, out)


class UpdaterProcess:
    """The process that takes versions.

    Args:
        export: the export.
        following: what is followed.
        log: is told of its end.
    """

    def __init__(self, export: Path, following: Following, log: AccessLog) -> None:
        self._export, self._following, self._log = export, following, log
        self._process: ForkServerProcess | None = None
        self._pipe: Any = None
        self._started = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self.due: float | None = None
        """When it is started again (monotonic seconds); None: it runs, or is not to run."""

    @property
    def sentinels(self) -> list[int]:
        """What becomes ready when it ends."""
        return [] if self._process is None else [self._process.sentinel]

    def start(self) -> None:
        """Starts it."""
        self._process, self._pipe = start_process("updater", _update, self._export, self._following, self._log.is_on)
        self._started, self.due = time.monotonic(), None
        self._log.event("updater_started", process=self._process.pid)

    def replace_lost(self) -> None:
        """Starts another one if it has died, at once or after a pause."""
        now = time.monotonic()
        if self._process is not None and not self._process.is_alive():
            self._log.event("updater_lost", process=self._process.pid, exit_status=self._process.exitcode)
            self._pipe.close()
            self._process = None
            steady = now - self._started > _STEADY_S
            self._pause_s = _FIRST_PAUSE_S if steady else self._pause_s
            self.due = now + self._pause_s
            self._pause_s = min(4 * self._pause_s, _LONGEST_PAUSE_S)
        if self.due is not None and now >= self.due:
            self.start()

    def stop(self) -> None:
        """Ends it; what it was writing is not used."""
        self.due = None
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid or 0, signal.SIGTERM)
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


def _update(export: Path, following: Following, log: bool, pipe: Any) -> None:
    """The process: takes versions until SIGTERM, or until its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    os.nice(_NICE)
    torch.set_num_threads(1)
    out = AccessLog() if log else AccessLog(None)

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            pipe.recv()
        stop.set()

    threading.Thread(target=watch, name="parent", daemon=True).start()
    try:
        run_updater(VersionFolder(following.versions, export_digest(export)), export, following, stop, out.event)
    except ZigguratError as error:
        out.event("follow_failed", kind="versions", problem=error.problem, hint=error.hint)
        raise SystemExit(1) from None
