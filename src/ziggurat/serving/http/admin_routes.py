"""``/metrics`` for Prometheus, and ``/admin`` for those who run the server."""

from __future__ import annotations

import dataclasses
import os
import time

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ziggurat.serving.http.call import Service, call_of, json_response
from ziggurat.serving.http.doors import Doors
from ziggurat.serving.http.schema_docs import plain_docs
from ziggurat.serving.model.compiled_code import words
from ziggurat.serving.tables.lookup import Lookup
from ziggurat.serving.tables.stores import DiskTable


def _place(lookup: object, table: str) -> str:
    is_on_disk = isinstance(lookup, Lookup) and isinstance(lookup.tables[table], DiskTable)
    return "disk" if is_on_disk else "memory"


def admin_routes(service: Service, doors: Doors) -> APIRouter:
    """Returns the routes."""
    router = APIRouter(tags=["operation"])

    async def metrics(request: Request) -> Response:
        call_of(request, "/metrics")
        service.metrics.queue(service.batcher.queued_rows)
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def status(request: Request) -> Response:
        call_of(request, "/admin/status")
        model = service.model
        manifest = model.scorer.manifest
        return json_response(
            {
                "model": model.version.to_json(),
                "exported_at": model.exported_at,
                "loaded_at": model.loaded_at,
                "age_s": round(time.time() - model.exported_at, 3),
                "precision": manifest.precision,
                "dense": words(model.scorer.code),
                "tables": [
                    {
                        "name": table.name,
                        "rows": table.rows,
                        "dim": table.dim,
                        "side": table.side,
                        "place": _place(model.scorer.lookup, table.name),
                    }
                    for table in manifest.tables
                ],
                "worker": os.getpid(),
                "queue_rows": service.batcher.queued_rows,
                "stopping": service.stopping,
                "limits": dataclasses.asdict(service.limits),
                "clients": [{"name": each.name, "right": each.right, "rate": each.rate} for each in doors.clients],
            }
        )

    router.add_api_route("/metrics", metrics, methods=["GET"], **plain_docs("Metrics for Prometheus", "text/plain"))
    router.add_api_route("/admin/status", status, methods=["GET"], **plain_docs("What this worker serves"))
    return router
