"""What all routes share: the service behind them, the request as the gate received it, deadlines, answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ziggurat.serving.http.batching.batcher import Answer, Batcher
from ziggurat.serving.http.gate import CALL, GateCall
from ziggurat.serving.http.large_bodies import LargeBodies
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.metrics import Metrics
from ziggurat.serving.http.refusals import HttpRefused
from ziggurat.serving.http.served_model import ServedModel
from ziggurat.serving.model.given_rows import GivenRows

DEADLINE = "x-deadline-ms"
"""The header that says in how many milliseconds a request must be answered."""


@dataclass(slots=True)
class Service:
    """What answers.

    Attributes:
        batcher: predicts.
        limits: the bounds.
        metrics: what is counted.
        stopping: whether the server drains.
        large_bodies: reads bodies.
    """

    batcher: Batcher
    limits: ServingLimits
    metrics: Metrics
    stopping: bool = False
    large_bodies: LargeBodies = field(default_factory=LargeBodies)

    @property
    def model(self) -> ServedModel:
        """The model that is served now."""
        return self.batcher.model

    async def predict(
        self,
        call: GateCall,
        make: Callable[[ServedModel], list[GivenRows]],
        rows: int,
        deadline_ms: float | None,
        *,
        is_rank: bool = False,
    ) -> Answer:
        """Returns the predictions for the rows of a request, and notes how long each stage took."""
        call.rows = rows
        seconds = self.limits.deadline_s if deadline_ms is None else deadline_ms / 1e3
        deadline = call.began + min(seconds, self.limits.longest_deadline_s)
        self.metrics.queue(self.batcher.queued_rows)
        began = time.monotonic()
        answer = await self.batcher.predict(make, rows, deadline, is_rank=is_rank, gone=call.gone)
        call.stages |= {"queue": answer.queue_s, "encode": answer.encode_s, "predict": answer.predict_s}
        call.stages["wait"] = max(
            0.0, time.monotonic() - began - answer.queue_s - answer.encode_s - answer.predict_s
        )  # for the other requests of the batch
        return answer


def call_of(request: Request, endpoint: str) -> GateCall:
    """Returns the request as the gate received it, and notes its endpoint."""
    found: GateCall = request.scope[CALL]
    found.endpoint = endpoint
    return found


def deadline_of(request: Request, of_body: float | None) -> float | None:
    """Returns the milliseconds in which a request must be answered: of its header, else of its body.

    Raises:
        HttpRefused: the header is no number.
    """
    text = header(request, DEADLINE)
    if text is None:
        return of_body
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e12:
        problem = f"the header {DEADLINE} is no number of milliseconds above 0"
        raise HttpRefused(400, "invalid_deadline", problem)
    return value


def header(request: Request, name: str) -> str | None:
    """Returns a header of a request by its lower-case name, the first of several; None if it has none."""
    wanted = name.encode()
    return next((value.decode("latin-1") for key, value in request.scope["headers"] if key == wanted), None)


def json_response(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Returns an answer in JSON."""
    return Response(msgspec.json.encode(value), status, dict(headers or {}), "application/json")
