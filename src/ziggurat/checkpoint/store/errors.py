"""Explains errors of object stores to the user: a missing bucket, credentials, the endpoint, an overloaded store.

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


def explained(error: BaseException, url: str) -> tuple[str, str]:
    """Returns what has happened, and a hint.

    Args:
        error: the client library's error, after all of its attempts.
        url: URL of the store.
    """
    code, status, details = _response(error)
    kinds = {kind.__name__ for cause in _causes(error) for kind in type(cause).__mro__}
    bucket, message = urlsplit(url).netloc, details or f"{type(error).__name__}: {error}"
    setting = f" (AWS_ENDPOINT_URL is {endpoint() or 'not set'})" if url.startswith("s3") else ""
    reachable = f"check that the store's address is right{setting}, and that this host reaches it"
    if code == "NoSuchBucket":
        return f"there is no bucket {bucket!r}", f"create it, or name another place; else {reachable}"
    if kinds & _CREDENTIALS:
        return f"no credentials for bucket {bucket!r}: {message}", _SET_CREDENTIALS
    if code in _REFUSED or status == 403 or "PermissionError" in kinds:
        permissions = f"they must be allowed to list, read, write and delete in bucket {bucket!r}"
        problem = f"the store refuses these credentials ({code or message}): {message}"
        return problem, f"{_SET_CREDENTIALS}; {permissions}"
    if code in _OTHER_REGION:
        return f"bucket {bucket!r} is in another region: {message}", "set AWS_DEFAULT_REGION to its region"
    if kinds & _TIMEOUT or code == "RequestTimeout":
        hint = "check whether the store is overloaded or the network slow, then go on from the last checkpoint"
        return f"no answer in time, in all attempts: {message}", hint
    if status >= 500 or code == "SlowDown":
        hint = "wait until the store recovers and go on from the last checkpoint; AWS_MAX_ATTEMPTS sets the attempts"
        return f"the store answers {status} {code}, in all attempts: {message}", hint
    if kinds & _UNREACHABLE:
        return f"no connection to the store, in all attempts: {message}", reachable
    if "ValueError" in kinds:
        return message, reachable
    return f"{message}", "read the store's own log, or name another place"


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
    return "", 0, ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields the error, its cause, the cause of that, and so on."""
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__
