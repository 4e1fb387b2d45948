"""Opens the fsspec file system of a URL, with bounded attempts and without cached listings."""

from __future__ import annotations

import os
from typing import Any

from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.core.remote.errors import endpoint, explained
from ziggurat.core.remote.uri import S3

REQUEST_ATTEMPTS = 5
"""How often a request is tried, unless AWS_MAX_ATTEMPTS is set."""
BODY_ATTEMPTS = 2
"""How often a response's body is read if the connection breaks off."""
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "http": "http", "https": "http"}
"""Scheme of a URL -> the optional part of ziggurat that installs its package."""

CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 10, 30


def open_file_system(url: str) -> tuple[Any, str]:
    """Returns the fsspec file system of a URL, and the URL's path in it.

    The client library takes endpoint and credentials from the environment.

    Raises:
        EnvironmentMismatch: a package that this kind of URL needs is not installed, or its library refuses the URL.
    """
    from fsspec.core import url_to_fs  # imported here, as only runs with a URL need it

    is_s3 = url.partition("://")[0] in S3
    try:
        files, root = url_to_fs(url, use_listings_cache=False, **(_s3_options() if is_s3 else {}))
    except ImportError as error:
        extra = _EXTRAS.get(url.partition("://")[0])
        hint = f'pip install "ziggurat[{extra}]"' if extra else "install that package"
        raise EnvironmentMismatch(f"{url}: needs a package that is not installed: {error}", hint) from error
    except ValueError as error:
        what, hint = explained(error, url)
        raise EnvironmentMismatch(f"{url}: {what}", hint) from error
    if is_s3:
        files.retries = BODY_ATTEMPTS
    return files, root.rstrip("/")


def _s3_options() -> dict[str, Any]:
    retries: dict[str, Any] = {}
    if "AWS_MAX_ATTEMPTS" not in os.environ:
        retries["total_max_attempts"] = REQUEST_ATTEMPTS
    if "AWS_RETRY_MODE" not in os.environ:
        retries["mode"] = "standard"
    return {
        "endpoint_url": endpoint(),
        "max_concurrency": 1,  # one request per file: a checkpoint has many files already
        "config_kwargs": {"connect_timeout": CONNECT_TIMEOUT_S, "read_timeout": READ_TIMEOUT_S, "retries": retries},
    }
