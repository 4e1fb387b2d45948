"""The folder of versions: their records, which of them is served, and the files that they consist of.

``version-NNNNNNNN.json`` is a version; its files are complete before it appears. ``serving.json`` names the version
that is served; all workers watch it. Only the updater writes versions, and a process that is killed at any time leaves
at most files that no version names: the next updater removes them. Rows are appended to logs, of which a version has
the first so many rows, so what was appended without a version is never read.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path

from ziggurat.core.errors import ConfigError, DataError, ZigguratError
from ziggurat.core.files import explained_writes
from ziggurat.core.sealed import declared, read_sealed_json, sealed, write_sealed_json
from ziggurat.core.untrusted import Damage, is_plain_folder
from ziggurat.serving.artefact.manifest import Manifest
from ziggurat.serving.versions.record import FollowStatus, Mode, Pointer, TableRecord, VersionRecord

FORMAT_VERSION = 1
OWNER_FILE, POINTER_FILE, STATUS_FILE, WRITES_FILE = "versions.json", "serving.json", "following.json", "writes.json"
_RECORD = re.compile(r"version-([0-9]{8,12})\.json")
_PART = re.compile(r"(?:t[0-9]{4}|dense)\.[0-9]{8,12}\.(?:rows|log|ids|safetensors)")
_SHARED_MEMORY = Path("/dev/shm")

DAMAGED = Damage(DataError, "stop the server, delete the folder of versions and start again; it takes them anew")


class VersionFolder:
    """The versions of an export.

    Args:
        root: the folder.
        export: the first 16 digits of the SHA-256 of the export's ``export.json``.

    Attributes:
        root: the folder.
        indexes: a folder in memory for the indexes of logs; None: there is none.
    """

    def __init__(self, root: Path, export: str) -> None:
        self.root, self.export = root, export
        path = root / OWNER_FILE
        owner = declared(_Owner, read_sealed_json(path, DAMAGED), path, DAMAGED)
        if not re.fullmatch("[0-9a-f]{32}", owner.id):
            raise DAMAGED.of(path, "has no id")
        if owner.format_version != FORMAT_VERSION or owner.export != export:
            raise DataError(
                f"{root}: holds the versions of another export, or of another ziggurat",
                "delete it, or name another folder with --versions",
            )
        self.indexes = _in_memory(owner.id)

    @classmethod
    def create(cls, root: Path, export: str, manifest: Manifest, exported_at: float) -> VersionFolder:
        """Opens a folder; makes it, with the export as version 0, if there is none.

        Raises:
            DataError: the folder is that of another export, is damaged, or cannot be written.
            ConfigError: there is another folder or file in its place.
        """
        if root.is_symlink() or (root.exists() and not is_plain_folder(root)):
            raise ConfigError(f"{root}: is no folder", "name a new folder with --versions")
        if not (root / OWNER_FILE).is_file():
            if root.exists() and any(root.iterdir()):
                raise ConfigError(f"{root}: is no folder of versions", "name a new folder with --versions")
            with explained_writes(root):
                root.mkdir(parents=True, exist_ok=True)
            tables = {entry.name: TableRecord() for entry in manifest.tables}
            step = manifest.source.step
            first = VersionRecord(0, step, "", export, exported_at, time.time(), 0, "", 0, "", tables)
            write_sealed_json(root / _name(0), asdict(first))
            write_sealed_json(root / POINTER_FILE, asdict(Pointer(0, "following", time.time())))
            write_sealed_json(root / OWNER_FILE, asdict(_Owner(FORMAT_VERSION, export, secrets.token_hex(16))))
        found = cls(root, export)
        found.record(found.pointer().number)
        return found

    def record(self, number: int) -> VersionRecord:
        """Returns a version.

        Raises:
            DataError: it is damaged.
            FileNotFoundError: it is not kept any more.
        """
        path = self.root / _name(number)
        found = declared(VersionRecord, read_sealed_json(path, DAMAGED), path, DAMAGED)
        for name in (found.dense, *(name for each in found.tables.values() for name in _files(each))):
            if name and not _PART.fullmatch(name):
                raise DAMAGED.of(path, f"names a file {name[:80]!r}")
        sizes = (number for each in found.tables.values() for number in (each.log_rows, each.changed, each.tail_rows))
        if found.number != number or any(not 0 <= size < 1 << 48 for size in sizes):
            raise DAMAGED.of(path, "is of another version, or names impossible sizes")
        return found

    def records(self) -> list[VersionRecord]:
        """Returns all versions that can be read, the oldest first."""
        found: list[VersionRecord] = []
        for number in sorted(self._numbers()):
            with contextlib.suppress(FileNotFoundError, ZigguratError):
                found.append(self.record(number))
        return found

    def next_number(self) -> int:
        """Returns the number of the next version."""
        return max(self._numbers(), default=-1) + 1

    def pointer(self) -> Pointer:
        """Returns which version is served.

        Raises:
            DataError: the file is missing or damaged.
        """
        path = self.root / POINTER_FILE
        try:
            return declared(Pointer, read_sealed_json(path, DAMAGED), path, DAMAGED)
        except FileNotFoundError:
            raise DAMAGED.of(path, "is missing") from None

    def pointer_stamp(self) -> tuple[int, int]:
        """Returns what changes whenever another version is chosen."""
        found = (self.root / POINTER_FILE).stat()
        return found.st_ino, found.st_mtime_ns

    def choose(self, number: int, mode: Mode) -> None:
        """Chooses the version that is served; the lock (:meth:`locked`) must be held."""
        before, held = self.pointer(), None
        with contextlib.suppress(FileNotFoundError, ZigguratError):
            held = self.record(before.number)
        chosen = before.after(mode, time.time(), self.record(number), held)
        write_sealed_json(self.root / POINTER_FILE, asdict(chosen))

    @contextlib.contextmanager
    def locked(self, name: str = "lock", *, wait: bool = True) -> Generator[None]:
        """Holds a lock of the folder, which ends with the process.

        Raises:
            BlockingIOError: another process holds it, and ``wait`` is False.
        """
        descriptor = os.open(self.root / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield
        finally:
            os.close(descriptor)

    def publish(self, record: VersionRecord) -> bool:
        """Writes a version, whose files are complete, and serves it unless another one is pinned; returns whether."""
        with self.locked():
            write_sealed_json(self.root / _name(record.number), asdict(record))
            follows = self.pointer().mode == "following"
            if follows:
                self.choose(record.number, "following")
            return follows

    def serve_newest(self, number: int) -> None:
        """Serves a version that is complete, unless another one is pinned."""
        with self.locked():
            if self.pointer().mode == "following":
                self.choose(number, "following")

    def prune(self, keep: int) -> None:
        """Removes all but the newest versions and that which is served, and the files that no version names.

        The newest one is kept also if it is the same version as that which is served, written anew: the next one is
        made of it.

        Workers that use such a file keep it until they end or switch: it is mapped, or open.
        """
        with self.locked():
            records, served = self.records(), self.pointer().number
            newest: dict[str, VersionRecord] = {}
            for each in records:
                held = newest.get(each.short)
                if held is None or held.number != served:
                    newest[each.short] = each  # of those that compaction made of each other, the last one
            chosen = {each.number: each for each in (*newest.values(), *records[-1:])}
            kept = sorted(chosen.values(), key=lambda each: each.number)
            while len(kept) > keep:
                oldest = next((each for each in kept[:-1] if each.number != served), None)
                if oldest is None:
                    break
                kept.remove(oldest)
            numbers = {each.number for each in kept}
            for number in self._numbers() - numbers:
                (self.root / _name(number)).unlink(missing_ok=True)
            used = {each.dense for each in kept}
            used |= {name for each in kept for table in each.tables.values() for name in _files(table)}
            for path in self.root.iterdir():
                if _PART.fullmatch(path.name) and path.name not in used:
                    path.unlink(missing_ok=True)
            if self.indexes is not None:
                current = {index_name(table) for each in kept[-1:] for table in each.tables.values()}
                for path in self.indexes.iterdir():
                    if path.name not in current:
                        path.unlink(missing_ok=True)

    def status(self) -> FollowStatus:
        """Returns what the updater tells; nothing if it has told nothing, or the file is damaged."""
        path = self.root / STATUS_FILE
        try:
            return declared(FollowStatus, read_sealed_json(path, DAMAGED), path, DAMAGED)
        except (FileNotFoundError, ZigguratError):
            return FollowStatus()

    def tell(self, status: FollowStatus) -> None:
        """Writes what the updater tells. It need not outlast a failure of the machine, so it is not flushed.

        On a disk without space for another file, which the status is to tell, the file is written over. Its checksum
        tells a reader that comes in between.

        Raises:
            OSError: neither is possible.
        """
        path, text = self.root / STATUS_FILE, json.dumps(sealed(asdict(status)))
        temporary = self.root / f".{STATUS_FILE}.new"
        try:
            temporary.write_text(text)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            with path.open("r+") as file:
                file.write(text.ljust(path.stat().st_size))

    def forget_indexes(self, *, folder: bool = False) -> None:
        """Removes what is in the folder in memory, and the folder if it is asked for."""
        for path in () if self.indexes is None else self.indexes.iterdir():
            path.unlink(missing_ok=True)
        if folder and self.indexes is not None:
            shutil.rmtree(self.indexes, ignore_errors=True)

    def _numbers(self) -> set[int]:
        return {int(found[1]) for path in self.root.iterdir() if (found := _RECORD.fullmatch(path.name))}


@dataclass(frozen=True, slots=True)
class _Owner:
    """The content of ``versions.json``.

    Attributes:
        format_version: of the folder.
        export: the export that the versions are of.
        id: names the folder in memory.
    """

    format_version: int
    export: str
    id: str


def _name(number: int) -> str:
    return f"version-{number:08d}.json"


def _files(table: TableRecord) -> tuple[str, ...]:
    return (table.base, *((f"{table.log}.log", f"{table.log}.ids") if table.log else ()))


def index_name(table: TableRecord) -> str:
    """Returns the name of the index of a table's log, in memory."""
    return f"{table.log}.{table.log_rows}.index"


def _in_memory(identity: str) -> Path | None:
    """Returns a folder in memory that only this user can read; None if there is none."""
    path = _SHARED_MEMORY / f"ziggurat-versions-{os.getuid()}-{identity}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError:
        return None
    safe = is_plain_folder(path) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return path if safe else None
