"""What went wrong in an object store, in the user's words: the bucket, credentials, the endpoint, an overloaded store.

Libraries of stores have errors of their own, which are told apart by the names of their classes, so that none of them
need be installed.
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
_SLOW = frozenset({"TimeoutError", "ReadTimeoutError", "FSTimeoutError"})
_REFUSED = frozenset({"PermissionError", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"})
_ELSEWHERE = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
_GIVES_KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"


def endpoint() -> str | None:
    """Of S3, as the environment says; None: Amazon's own, or what its config file says."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def explained(error: BaseException, url: str) -> tuple[str, str]:
    """What has happened, and the hint.

    Args:
        error: of the library, after it has tried often enough.
        url: of the store.
    """
    code, status, message = _answer(error)
    kinds = {kind.__name__ for each in _causes(error) for kind in type(each).__mro__}
    bucket, said = urlsplit(url).netloc, message or f"{type(error).__name__}: {error}"
    asked = f" (AWS_ENDPOINT_URL is {endpoint() or 'not set'})" if url.startswith("s3") else ""
    reachable = f"see that the store's address is right{asked}, and that this host reaches it"
    if code == "NoSuchBucket":
        return f"there is no bucket {bucket!r}", f"create it, or name another place; else {reachable}"
    if kinds & _CREDENTIALS:
        return f"no credentials for bucket {bucket!r}: {said}", _GIVES_KEYS
    if code in _REFUSED or status == 403 or "PermissionError" in kinds:
        may = f"they must be allowed to list, read, write and delete in bucket {bucket!r}"
        return f"the store refuses these credentials ({code or said}): {said}", f"{_GIVES_KEYS}; {may}"
    if code in _ELSEWHERE:
        return f"bucket {bucket!r} lies in another region: {said}", "set AWS_DEFAULT_REGION to its region"
    if kinds & _SLOW or code == "RequestTimeout":
        hint = "see whether the store is overloaded or the network slow, then go on from the last checkpoint"
        return f"no answer in time, however often it was asked: {said}", hint
    if status >= 500 or code == "SlowDown":
        hint = "wait until the store is well and go on from the last checkpoint; AWS_MAX_ATTEMPTS says how often to ask"
        return f"the store answers {status} {code}, however often it is asked: {said}", hint
    if kinds & _UNREACHABLE:
        return f"no connection to the store, however often it was tried: {said}", reachable
    if "ValueError" in kinds:
        return said, reachable
    return f"{said}", "see what the store's own log says, or name another place"


def is_missing_bucket(error: BaseException) -> bool:
    """Whether what is not there is the bucket itself."""
    return _answer(error)[0] == "NoSuchBucket"


def is_refused_creation(error: BaseException) -> bool:
    """Whether a conditional write was not done because the object is there, or is being written by another."""
    conditions = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}
    return isinstance(error, FileExistsError) or _answer(error)[0] in conditions


def is_unknown_request(error: BaseException) -> bool:
    """Whether the store says that it has no such kind of request."""
    code, status, _ = _answer(error)
    return code == "NotImplemented" or status == 501 or isinstance(error, NotImplementedError)


def _answer(error: BaseException) -> tuple[str, int, str]:
    """Code, HTTP status and message of the store's answer; ``("", 0, "")`` where there was none."""
    for each in _causes(error):
        response = cast("Any", getattr(each, "response", None))
        if isinstance(response, dict):
            told = cast("dict[str, Any]", response)
            said, about = told.get("Error", {}), told.get("ResponseMetadata", {})
            return str(said.get("Code", "")), int(about.get("HTTPStatusCode", 0)), str(said.get("Message", ""))
    return "", 0, ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__
