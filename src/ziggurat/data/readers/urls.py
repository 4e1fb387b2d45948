"""Resolves the URLs of a source: files, folders, globs and zip archives in any place that fsspec reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

import pydantic

from ziggurat.core.errors import DataError, nearest
from ziggurat.core.remote.file_system import open_file_system
from ziggurat.core.remote.remote_file import RemoteFile, as_remote, explained_requests, find_remote
from ziggurat.core.remote.uri import check_scheme
from ziggurat.data.readers.archives import ZIP_SUFFIX, matching_members, member_names
from ziggurat.data.readers.suffixes import format_suffix, is_hidden, is_marker

_WEB = ("http", "https")
_LISTED = 8
_SECRET = re.compile(r"(?i)token|signature|secret|password|credential|api.?key|^(sig|key|auth)$")
"""Names of a query's parameters whose values are credentials."""


class UrlPath(PurePosixPath):
    """A URL, with the parts and suffixes of a path; a query is part of its text alone.

    A plain path would merge the two slashes behind the scheme.
    """

    query = ""

    @classmethod
    def of(cls, url: str) -> UrlPath:
        """Returns the path of ``url``."""
        bare, mark, query = url.partition("?") if scheme_of(url) in _WEB else (url, "", "")
        path = cls(bare)
        path.query = mark + query
        return path

    def __str__(self) -> str:
        scheme, _, rest = super().__str__().partition("/")
        return f"{scheme}//{rest}{self.query}"

    def __fspath__(self) -> str:
        return str(self)

    def as_posix(self) -> str:
        return str(self)

    def name_in(self, folder: PurePath) -> str:
        """Returns its name in a folder, without a query; the whole URL if it is not in that folder."""
        inside = isinstance(folder, UrlPath) and self.is_relative_to(folder)
        return "/".join(self.relative_to(folder).parts) if inside else str(self)


def _as_folder(value: object) -> object:
    """Returns a URL as one; other values as they are."""
    if isinstance(value, str) and scheme_of(value) in ("file", "local"):
        return value.partition("://")[2]
    return UrlPath.of(value) if isinstance(value, str) and is_url(value) else value


LogFolder = Annotated[
    Path | pydantic.InstanceOf[UrlPath],
    pydantic.BeforeValidator(_as_folder),
    pydantic.PlainSerializer(str, when_used="json"),
    pydantic.WithJsonSchema({"type": "string", "format": "path"}),
]
"""The folder that file names in a config refer to: a path or a URL."""


def scheme_of(name: str) -> str:
    """Returns the scheme of a URL; empty for a path."""
    scheme, separator, _ = name.partition("://")
    return scheme if separator and scheme.isidentifier() else ""


def is_url(name: str) -> bool:
    """Whether a source names a place that is not a folder of this machine."""
    return scheme_of(name) not in ("", "file", "local")


def joined(name: str, folder: PurePath) -> str:
    """Returns the URL or path that ``name`` means in ``folder``."""
    if is_url(name) or not isinstance(folder, UrlPath):
        return name
    return f"{str(folder).rstrip('/')}/{name}"


def resolve_url(url: str, suffixes: Sequence[str]) -> Iterator[tuple[RemoteFile, str]]:
    """Yields the files that a URL names, sorted, and of files in zip archives the name in the archive.

    Args:
        url: a file, a folder (all files below with one of ``suffixes``, hidden files skipped), a glob, or a file or
            glob in a zip archive. On web servers only files, and no globs: they cannot list.
        suffixes: the format's suffixes.

    Raises:
        DataError: nothing is there, it cannot be read, or the URL holds credentials.
        ConfigError: the URL is of an unknown kind.
        EnvironmentMismatch: a package that this kind of URL needs is not installed.
    """
    parts = urlsplit(url)
    check_scheme(url, parts.scheme, "write a path, or a URL such as s3://BUCKET/logs/*.csv")
    if "@" in parts.netloc:
        raise DataError(
            f"a URL with credentials in it (…@{parts.netloc.rpartition('@')[2]}) would be readable in the config",
            "give them in the environment, as in AWS_ACCESS_KEY_ID; of web servers in ~/.netrc",
        )
    secret = next((name for name, _ in parse_qsl(parts.query) if _SECRET.search(name)), None)
    if secret is not None:
        raise DataError(
            f"{url.partition('?')[0]}: a URL with {secret}=… would give others access who read the config",
            "download the file; or name it in its store, as s3://BUCKET/FILE, with credentials in the environment",
        )
    inside = _within_archive(url)
    if inside is not None:
        archive, pattern = inside
        yield from ((archive, member) for member in matching_members(archive, pattern))
        return
    is_web = parts.scheme in _WEB
    if any(mark in url for mark in "*?[") and not is_web:
        yield from _matches(url, suffixes)
        return
    try:
        yield find_remote(url), ""
    except FileNotFoundError:
        if is_web:
            raise DataError(
                f"{url}: the server has no such file", "check the URL; name each file of a folder"
            ) from None
        yield from _below(url, suffixes)


def _within_archive(url: str) -> tuple[RemoteFile, str] | None:
    """Returns the zip archive that a URL leads into, and the name or pattern after it."""
    start = url.lower().find(f"{ZIP_SUFFIX}/")
    while start >= 0:
        end = start + len(ZIP_SUFFIX)
        try:
            return find_remote(url[:end]), url[end + 1 :]
        except FileNotFoundError:  # it is a folder
            start = url.lower().find(f"{ZIP_SUFFIX}/", end)
    return None


def _matches(pattern: str, suffixes: Sequence[str]) -> Iterator[tuple[RemoteFile, str]]:
    files, path = open_file_system(pattern)
    with explained_requests(pattern):
        found = files.glob(path, detail=True)
    urls = {files.unstrip_protocol(name): info for name, info in found.items() if info.get("type") == "file"}
    kept = [url for url in sorted(urls) if not is_marker(UrlPath.of(url), suffixes)]
    if not kept:
        raise DataError(f"{pattern}: no file matches this pattern", "correct the pattern, or the folder")
    yield from ((as_remote(_spelled(url, pattern), urls[url]), "") for url in kept)


def _below(url: str, suffixes: Sequence[str]) -> Iterator[tuple[RemoteFile, str]]:
    files, path = open_file_system(url)
    try:
        with explained_requests(url):
            found = files.find(path, detail=True)
    except FileNotFoundError:
        raise _missing(url) from None
    base = f"{path.strip('/')}/"
    urls = {
        files.unstrip_protocol(name): info
        for name, info in found.items()
        if info.get("type") == "file" and not is_hidden(PurePosixPath(name.lstrip("/").removeprefix(base)))
    }
    if not urls:
        raise _missing(url)
    matches = [pair for each in sorted(urls) for pair in _of_format(_spelled(each, url), urls[each], suffixes)]
    if not matches:
        raise DataError(f"{url}: no file below ends in {', '.join(suffixes)}", "name the files one by one")
    yield from matches


def _of_format(url: str, info: dict[str, object], suffixes: Sequence[str]) -> list[tuple[RemoteFile, str]]:
    """Returns the file, or those in a zip archive whose name does not say its format, if they have the suffixes."""
    path = UrlPath.of(url)
    if format_suffix(path) in suffixes:
        return [(as_remote(url, info), "")]
    if path.suffix.lower() == ZIP_SUFFIX and format_suffix(path) == "":
        archive = as_remote(url, info)
        return [(archive, name) for name in member_names(archive) if format_suffix(Path(name)) in suffixes]
    return []


def _spelled(url: str, given: str) -> str:
    """Returns ``url`` with the scheme that the user wrote, as some stores have several."""
    return f"{scheme_of(given)}://{url.partition('://')[2]}"


def _missing(url: str) -> DataError:
    parent, _, name = url.rstrip("/").rpartition("/")
    hint = "check the name, and that these credentials may list the folder"
    if urlsplit(parent).netloc:
        files, path = open_file_system(parent)
        try:
            with explained_requests(parent):
                neighbours = sorted(str(each).rstrip("/").rpartition("/")[2] for each in files.ls(path, detail=False))
        except (FileNotFoundError, DataError):
            neighbours = []
        close = nearest(name, neighbours)
        if close is not None:
            hint = f"did you mean {parent + '/' + close!r}?"
        elif neighbours:
            hint = f"{parent} holds: {', '.join(neighbours[:_LISTED])}{', …' if len(neighbours) > _LISTED else ''}"
    return DataError(f"{url}: no such file", hint)
