"""What the clients of a served model may take of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """The bounds of one worker.

    Attributes:
        body_bytes: size of a request's body.
        all_bodies_bytes: size of all bodies that are being received or answered.
        head_bytes: size of a request's line and headers.
        head_s: seconds in which they must arrive.
        body_s: seconds in which a body must arrive.
        unread_s: seconds after which an answer that its client does not take is ended.
        idle_s: seconds for which a connection may stay open without a request.
        connections: open connections.
        rows: rows of a request.
        ids_per_row: ids of all lists of a row.
        depth: lists and objects in each other.
        queue_rows: rows that wait to be predicted.
        overload_wait_s: seconds that the rows that wait may take while requests come faster than they are answered;
            None: 20 ms, or what ten requests take if that is longer.
        batch_rows: rows that are predicted together.
        batch_wait_s: seconds to wait for more rows before a batch is begun that is not full.
        deadline_s: seconds in which a request must be answered, unless it says otherwise.
        longest_deadline_s: the most that a request may say.
        drain_s: seconds for answering what was admitted, after SIGTERM.
    """

    body_bytes: int = 16 * 2**20
    all_bodies_bytes: int = 256 * 2**20
    head_bytes: int = 16 * 2**10
    head_s: float = 10.0
    body_s: float = 20.0
    unread_s: float = 20.0
    idle_s: float = 30.0
    connections: int = 1024
    rows: int = 10_000
    ids_per_row: int = 10_000
    depth: int = 16
    queue_rows: int = 20_000
    overload_wait_s: float | None = None
    batch_rows: int = 2_048
    batch_wait_s: float = 0.0
    deadline_s: float = 5.0
    longest_deadline_s: float = 60.0
    drain_s: float = 30.0
