"""Copies an export from an object store into a folder of this host."""

from __future__ import annotations

import time
from pathlib import Path

from ziggurat.core.errors import DataError
from ziggurat.core.files import FolderInUse, atomic_folder, locked_folder, user_cache
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.remote.remote_file import find_remote
from ziggurat.core.remote.uri import checked_store_uri, local_folder
from ziggurat.core.untrusted import MAX_TEXT_BYTES
from ziggurat.serving.artefact.damage import DAMAGED
from ziggurat.serving.artefact.manifest import MANIFEST_FILE, Manifest, manifest_digest

_PART_BYTES = 8 * 2**20
_POLL_S = 0.5
_WAIT_S = 3600.0


def export_cache() -> Path:
    """Returns the folder for exports that were fetched, in ``XDG_CACHE_HOME`` or ``~/.cache``."""
    return user_cache("exports")


def fetched_export(place: str, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Returns a folder of this host with an export.

    A folder is returned as it is. The export at a URL is copied into ``cache``, under a name made of the checksum of
    its manifest, and compared with its checksums; a copy that is there already is not fetched again. Processes of one
    host that need the same export wait for the one that copies it.

    Args:
        place: a folder, or the URL of one.
        cache: the folder of copies; by default that of :func:`export_cache`.
        progress: where to show progress.

    Raises:
        DataError: there is no export, it is damaged or changes meanwhile, or its server does not answer.
        EnvironmentMismatch: a package that this kind of URL needs is not installed.
    """
    local = local_folder(place)
    if local is not None:
        return local
    base, cache, progress = checked_store_uri(place).rstrip("/"), cache or export_cache(), progress or Silent()
    manifest = _small(f"{base}/{MANIFEST_FILE}", place)
    folder = cache / manifest_digest(manifest)
    until = time.monotonic() + _WAIT_S
    while not folder.is_dir():
        try:
            with locked_folder(cache / f"{folder.name}.lock", "fetching an export"):
                if not folder.is_dir():
                    _copy(base, manifest, folder, progress)
        except FolderInUse:
            if time.monotonic() > until:
                raise
            time.sleep(_POLL_S)
    return folder


def _small(url: str, place: str) -> bytes:
    try:
        file = find_remote(url)
    except FileNotFoundError:
        raise DataError(
            f"{place}: no export ({MANIFEST_FILE} is missing)", "copy one there: ziggurat export RUN OUT writes it"
        ) from None
    if file.size_bytes > MAX_TEXT_BYTES:
        raise DAMAGED.of(url, f"has {file.size_bytes:,} bytes; at most {MAX_TEXT_BYTES:,} are read")
    with file.open() as stream:
        return stream.read()


def _copy(base: str, manifest: bytes, folder: Path, progress: Progress) -> None:
    with atomic_folder(folder) as new:
        (new / MANIFEST_FILE).write_bytes(manifest)
        found = Manifest.open(new)
        progress.start("fetch", sum(each.bytes for each in found.files.values()), "bytes")
        done = 0
        for name, stored in found.files.items():
            url, path = f"{base}/{name}", new / name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                file = find_remote(url)
            except FileNotFoundError:
                raise DAMAGED.of(url, "is missing") from None
            if file.size_bytes != stored.bytes:
                raise DAMAGED.of(url, f"is damaged: it has {file.size_bytes:,} bytes, {stored.bytes:,} were written")
            with file.open() as stream, path.open("wb") as out:
                while part := stream.read(_PART_BYTES):
                    out.write(part)
                    done += len(part)
                    progress.advance(done)
        found.check_files(new)
        progress.finish()
