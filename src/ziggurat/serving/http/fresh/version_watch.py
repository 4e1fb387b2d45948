"""Exchanges the model of a worker whenever another version is chosen."""

from __future__ import annotations

import threading

from ziggurat.core.errors import DataError, ZigguratError
from ziggurat.serving.http.access_log import AccessLog
from ziggurat.serving.http.call import Service
from ziggurat.serving.http.served_model import ServedModel
from ziggurat.serving.versions.folder import VersionFolder
from ziggurat.serving.versions.opening import VersionOpener
from ziggurat.serving.versions.workers_seen import WorkerMark

_EVERY_S = 0.05
_AFTER_FAILURE_S = 1.0
_ATTEMPTS = 20


class VersionWatch:
    """Watches which version is served, in a thread of its own.

    Args:
        folder: the versions.
        exported: the export, as this worker serves it.
        log: is told of versions that cannot be opened.
    """

    def __init__(self, folder: VersionFolder, exported: ServedModel, log: AccessLog) -> None:
        self._folder, self._log = folder, log
        self._opener = VersionOpener(folder, exported.scorer)
        self._mark = WorkerMark(folder.root)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._number = -1
        self._stamp = (0, 0)

    def first(self) -> ServedModel:
        """Returns the version that is served.

        Raises:
            DataError: it cannot be opened.
        """
        for _ in range(_ATTEMPTS):
            found = self._opened()
            if found is None:
                continue
            self._mark.set(self._number)
            if self._folder.pointer().number == self._number:
                return found
        raise DataError(f"{self._folder.root}: versions were exchanged faster than they can be opened", "raise --poll")

    def start(self, service: Service) -> None:
        """Exchanges the model of a service from now on."""
        self._thread = threading.Thread(target=self._run, args=(service,), name="versions", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._mark.close()

    def _run(self, service: Service) -> None:
        pause = _EVERY_S
        while not self._stop.wait(pause):
            pause = _EVERY_S
            try:
                if self._folder.pointer_stamp() == self._stamp:
                    continue
                found = self._opened()
            except Exception as error:  # noqa: BLE001 - the version before is served on, whatever fails
                problem = error.problem if isinstance(error, ZigguratError) else f"{type(error).__name__}: {error}"
                self._log.event("version_not_opened", problem=problem, served=service.model.version.short)
                pause = _AFTER_FAILURE_S
                continue
            if found is None:
                continue
            service.batcher.replace(found)
            service.metrics.serve(found)
            self._mark.set(self._number)

    def _opened(self) -> ServedModel | None:
        """Opens the version that is chosen now; returns None if it was removed in between, as another one is chosen."""
        stamp = self._folder.pointer_stamp()
        pointer = self._folder.pointer()
        try:
            record = self._folder.record(pointer.number)
            scorer = self._opener.open(record, pointer)
        except (FileNotFoundError, DataError):
            if self._folder.pointer_stamp() != stamp:
                return None
            raise
        self._number, self._stamp = record.number, stamp
        return ServedModel(scorer, record if record.checkpoint else None)
