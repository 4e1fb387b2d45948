"""Explains errors of object stores and web servers: a missing bucket, credentials, the endpoint, an overloaded store.

The client libraries' errors are recognised by their class names, so that none of the libraries need be installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import urlsplit

_CREDENTIALS = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound", "SSOError"}
)
_UNREACHABLE = frozenset(
    {"ConnectionError", "HTTPClientError", "ClientConnectionError", "ClientPayloadError", "SSLError", "IncompleteRead"}
)
_TIMEOUT = frozenset({"TimeoutError", "ReadTimeoutError", "FSTimeoutError"})
_REFUSED = frozenset({"PermissionError", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"})
_OTHER_REGION = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
_SET_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"


def endpoint() -> str | None:
    """Returns the S3 endpoint that the environment sets; None means Amazon's own, or the one in AWS's config file."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def explained(error: BaseException, url: str, *, for_logs: bool = False) -> tuple[str, str]:
    """Returns what has happened, and a hint.

    Args:
        error: the client library's error, after all of its attempts.
        url: URL of the store.
        for_logs: whether logs are read there, not checkpoints kept.
    """
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__  # as the library of web servers calls any failure
    code, status, details = _response(error)
    kinds = {kind.__name__ for cause in _causes(error) for kind in type(cause).__mro__}
    bucket, message = urlsplit(url).netloc, details or f"{type(error).__name__}: {error}"
    store = "server" if url.startswith("http") else "store"
    place = f"server {bucket!r}" if url.startswith("http") else f"bucket {bucket!r}"
    setting = f" (AWS_ENDPOINT_URL is {endpoint() or 'not set'})" if url.startswith("s3") else ""
    reachable = f"check that the {store}'s address is right{setting}, and that this host reaches it"
    onwards = "run the same command again, which goes on" if for_logs else "go on from the last checkpoint"
    if code == "NoSuchBucket":
        return f"there is no {place}", f"create it, or name another place; else {reachable}"
    if kinds & _CREDENTIALS:
        return f"no credentials for {place}: {message}", _SET_CREDENTIALS
    if code in _REFUSED or status in (401, 403) or "PermissionError" in kinds:
        if url.startswith("http"):
            return f"the {place} refuses it: {message}", "check the URL; or download it, and name the file on disk"
        rights = "list and read" if for_logs else "list, read, write and delete"
        problem = f"the store refuses these credentials ({code or message}): {message}"
        return problem, f"{_SET_CREDENTIALS}; they must be allowed to {rights} in {place}"
    if code in _OTHER_REGION:
        return f"{place} is in another region: {message}", "set AWS_DEFAULT_REGION to its region"
    if kinds & _TIMEOUT or code == "RequestTimeout":
        hint = f"check whether the {store} is overloaded or the network slow, then {onwards}"
        return f"no answer in time, in all attempts: {message}", hint
    if status >= 500 or code == "SlowDown":
        hint = f"wait until the {store} recovers and {onwards}"
        hint += "; AWS_MAX_ATTEMPTS sets the attempts" if url.startswith("s3") else ""
        answer = f"{status} {code}".rstrip()
        return f"the {store} answers {answer}, in all attempts: {message}", hint
    if kinds & _UNREACHABLE:
        return f"no connection to the {store}, in all attempts: {message}", reachable
    if "ValueError" in kinds:
        return message, reachable
    return f"{message}", f"read the {store}'s own log, or name another place"


def is_temporary(error: BaseException) -> bool:
    """Returns whether the same request may succeed later: no connection, no answer in time, or an overloaded server."""
    code, status, _ = _response(error)
    kinds = {kind.__name__ for cause in _causes(error) for kind in type(cause).__mro__}
    return bool(kinds & (_TIMEOUT | _UNREACHABLE)) or status >= 500 or status == 429 or code == "SlowDown"


def is_missing(error: BaseException) -> bool:
    """Returns whether there is no such object, though its bucket or server exists.

    The library of web servers calls any failure a missing file, whose cause is the failure.
    """
    if is_missing_bucket(error):
        return False
    status = _response(error)[1]
    return status in (404, 410) or (isinstance(error, FileNotFoundError) and not status and error.__cause__ is None)


def is_missing_bucket(error: BaseException) -> bool:
    """Returns whether the bucket itself does not exist."""
    return _response(error)[0] == "NoSuchBucket"


def is_empty_range(error: BaseException) -> bool:
    """Returns whether a range of an object was requested that has no bytes, as any range of an empty object."""
    code, status, _ = _response(error)
    return code == "InvalidRange" or status == 416


def is_refused_creation(error: BaseException) -> bool:
    """Returns whether a conditional write failed because the object exists, or another process is writing it."""
    conditions = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}
    return isinstance(error, FileExistsError) or _response(error)[0] in conditions


def is_unknown_request(error: BaseException) -> bool:
    """Returns whether the store does not implement this kind of request."""
    code, status, _ = _response(error)
    return code == "NotImplemented" or status == 501 or isinstance(error, NotImplementedError)


def _response(error: BaseException) -> tuple[str, int, str]:
    """Returns code, HTTP status and message of the store's response; ``("", 0, "")`` if there was none."""
    for cause in _causes(error):
        response = cast("Any", getattr(cause, "response", None))
        if isinstance(response, dict):
            fields = cast("dict[str, Any]", response)
            details, metadata = fields.get("Error", {}), fields.get("ResponseMetadata", {})
            return str(details.get("Code", "")), int(metadata.get("HTTPStatusCode", 0)), str(details.get("Message", ""))
        status = getattr(cause, "status", None)
        if isinstance(status, int):  # of a web server
            return "", status, ""
    return "", 0, ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields the error, its cause, the cause of that, and so on."""
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__
