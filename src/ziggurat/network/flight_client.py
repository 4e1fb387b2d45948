"""A client of a guarded Flight server: it shows its token, checks the server, and bounds what it receives."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.flight as flight

from ziggurat.network.access import Credentials
from ziggurat.network.grpc_log import silence_grpc
from ziggurat.network.token import token_header

LOST = (flight.FlightError, pa.ArrowException)
"""Errors raised if a server is gone, shuts down or cannot answer; a retry, with it or another, may succeed."""
MAX_MESSAGE_BYTES = 2**31 - 1

_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # a new connection does not inherit the back-off of the last one
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_LIBRARY_TRACE = re.compile(r"\. (?:Detail: |gRPC client debug context: |Client context: ).*", re.DOTALL)
_LIBRARY_WORDS = re.compile(r"Flight (?:returned \w+ error|cancelled call), with message: *")
_UNTRUSTED = re.compile(r"certificate.verify.failed|hostname verification|peer name", re.IGNORECASE)
_LONGEST_MESSAGE = 300


def connect(address: str, credentials: Credentials, message_bytes: int = MAX_MESSAGE_BYTES) -> flight.FlightClient:
    """Returns a client of the server at ``address``, which connects with its first call.

    Args:
        address: ``grpc://host:port``, or with TLS ``grpc+tls://host:port``.
        credentials: what to show, and by what to check the server.
        message_bytes: size of the largest message to receive; a larger one ends the call.
    """
    silence_grpc()
    options = [*_OPTIONS, ("grpc.max_receive_message_length", min(message_bytes, MAX_MESSAGE_BYTES))]
    return flight.FlightClient(address, tls_root_certs=credentials.authorities, generic_options=options)


def call_options(credentials: Credentials, seconds: float) -> flight.FlightCallOptions:
    """Returns the options of a call that shows the token and may take ``seconds``."""
    headers = [] if credentials.token is None else [token_header(credentials.token)]
    return flight.FlightCallOptions(timeout=seconds, headers=headers)


def is_untrusted(error: flight.FlightUnavailableError) -> bool:
    """Returns whether a server was not called because its certificate is not trusted, or is for another name."""
    return _UNTRUSTED.search(str(error)) is not None


def was_too_large(error: flight.FlightCancelledError) -> bool:
    """Returns whether a call was ended because a message exceeded the limit of :func:`connect`; gRPC says it so."""
    return not _LIBRARY_WORDS.sub("", _LIBRARY_TRACE.sub("", str(error)), count=1).strip(". ")


def first_line(error: BaseException) -> str:
    """Returns the message of an error in one line of bounded length, without the library's traces of its calls."""
    text = _LIBRARY_WORDS.sub("", _LIBRARY_TRACE.sub("", str(error)), count=1).strip() or type(error).__name__
    text = "".join(letter if letter.isprintable() else " " for letter in text.splitlines()[0])
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE - 1]}…"
