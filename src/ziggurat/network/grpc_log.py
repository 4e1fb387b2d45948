"""gRPC's own log, which anybody who connects could fill."""

from __future__ import annotations

import os


def silence_grpc() -> None:
    """Turns off gRPC's log in this process, unless GRPC_VERBOSITY asks for it; to be called before its first use.

    What it would say about failed calls is in their errors.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
