"""Validates where checkpoints are stored: the absolute path of a folder, or the URL of an object store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from ziggurat.core.errors import ConfigError, nearest, shorten

HINT = "write a folder with its whole path, as in /data/checkpoints/NAME, or a URL, as in s3://BUCKET/PREFIX"
S3 = ("s3", "s3a")


def checked_store_uri(place: str) -> str:
    """Returns ``place`` if a config may name it.

    A config is read by any process, in any working directory, and can be read by anyone. So the place must be absolute,
    outlive the process, and contain no credentials.

    Raises:
        ConfigError: ``place`` is a relative path, a URL of a kind that fsspec does not know, a URL without a bucket or
            with credentials, or the memory of a process.
    """
    folder = local_folder(place)
    if folder is not None:
        if not folder.is_absolute():
            raise ConfigError(f"{place!r} is relative to the working directory, which differs from run to run; {HINT}")
        return place
    parts = urlsplit(place)
    check_scheme(place, parts.scheme)
    if "@" in parts.netloc:
        raise ConfigError(
            f"a URL with credentials in it (…@{parts.netloc.rpartition('@')[2]}) would be readable in the run folder; "
            "give them in the environment, as in AWS_ACCESS_KEY_ID"
        )
    if parts.scheme == "memory":
        raise ConfigError(f"{place!r} is lost when this process ends; {HINT}")
    if not parts.netloc and not parts.path.strip("/"):
        raise ConfigError(f"{place!r} names no bucket; {HINT}")
    if parts.scheme in S3 and not parts.netloc:
        raise ConfigError(f"{place!r} names no bucket; write it as {parts.scheme}://BUCKET/PREFIX")
    strange = sorted(set(place) & set("*[?#"))
    if strange:
        raise ConfigError(f"{place!r} has a {strange[0]}, which means something else to a store's library; {HINT}")
    return place


def local_folder(place: str) -> Path | None:
    """Returns the folder that a path or a ``file://`` URL names; None for another URL.

    Raises:
        ConfigError: ``place`` is empty, a chain of URLs, or a ``file://`` URL of another host.
    """
    if not place.strip():
        raise ConfigError(f"{shorten(place)} names no place; {HINT}")
    if "::" in place:
        raise ConfigError(f"{place!r} is a chain of URLs; {HINT}")
    if "://" not in place:
        return Path(place).expanduser()
    parts = urlsplit(place)
    if parts.scheme not in {"file", "local"}:
        return None
    if parts.netloc:
        raise ConfigError(f"{place!r} names a host, {parts.netloc!r}; of a folder here write file:///FOLDER")
    return Path(unquote(parts.path))


def check_scheme(place: str, scheme: str, example: str = HINT) -> None:
    """Validates that fsspec knows a kind of URL.

    Raises:
        ConfigError: it does not; the message names the nearest that it knows.
    """
    from fsspec import available_protocols  # imported here, as only runs with a URL need it

    known = available_protocols()
    if scheme not in known:
        close = nearest(scheme, known)
        hint = f"did you mean {close}://?" if close else example
        raise ConfigError(f"{place!r}: no place is known by {scheme}://; {hint}")
