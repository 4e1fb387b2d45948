"""Refuses requests of an overload before they are read.

At five times its capacity a server refuses four requests of five. To make a task, receive the body and read its rows
for each of them takes the event loop longer than it has, and what is admitted then waits for the loop and not in the
queue. So while the queue stands (:mod:`ziggurat.serving.http.batching.admission`), requests for predictions are
answered by their connection as soon as they are complete, whatever is in them, their token unread.
"""

from __future__ import annotations

import asyncio

from ziggurat.serving.http.access_log import AccessLog
from ziggurat.serving.http.call import Service
from ziggurat.serving.http.refusals import HttpRefused

_TELL_S = 1.0
_INFER = "/v2/models/{model}/infer"


class Shedding:
    """Tells which requests are refused unread, and notes them: in the metrics each, in the log how many a second.

    Args:
        service: what answers.
        log: where it is told.
    """

    def __init__(self, service: Service, log: AccessLog) -> None:
        self._service, self._log = service, log
        self._count = 0

    def refusal(self, method: bytes, url: bytes) -> HttpRefused | None:
        """Returns the refusal of a request; None if it is to be read.

        Args:
            method: its method.
            url: its path, with its query.
        """
        endpoint = _endpoint(method, url)
        if endpoint is None:
            return None
        refused = self._service.batcher.overload()
        if refused is None:
            return None
        self._service.metrics.refused(refused.code)
        self._service.metrics.answered(endpoint, refused.status, 0.0, {})
        if not self._count:
            asyncio.get_running_loop().call_later(_TELL_S, self._tell)
        self._count += 1
        return refused

    def _tell(self) -> None:
        """Logs how many were refused since the first of them."""
        self._log.event("shed", requests=self._count)
        self._count = 0


def _endpoint(method: bytes, url: bytes) -> str | None:
    """Returns the endpoint of a request for predictions; None if it is another request."""
    if method != b"POST":
        return None
    path = url.partition(b"?")[0]
    if path in (b"/v1/predict", b"/v1/rank"):
        return path.decode()
    return _INFER if path.startswith(b"/v2/models/") and path.endswith(b"/infer") else None
