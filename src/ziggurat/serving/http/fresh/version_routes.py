"""``/admin/versions`` and what changes them: pin, roll back, follow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ziggurat.core.errors import ZigguratError
from ziggurat.serving.http.call import Service, call_of, json_response
from ziggurat.serving.http.json_body import check_fields, parse, wrong_field
from ziggurat.serving.http.refusals import HttpRefused
from ziggurat.serving.http.schema_docs import pin_docs, plain_docs
from ziggurat.serving.versions import control
from ziggurat.serving.versions.folder import VersionFolder


def version_routes(service: Service, folder: VersionFolder | None) -> APIRouter:
    """Returns the routes.

    Args:
        service: what answers.
        folder: the versions; None: the model is not exchanged.
    """
    router = APIRouter(tags=["operation"])

    async def changed(request: Request, change: Callable[[VersionFolder], dict[str, Any]]) -> Response:
        if request.method == "POST" and request.headers.get("origin"):
            raise HttpRefused(
                403, "foreign_origin", "the request comes from a page in a browser", "send it without the header Origin"
            )
        if folder is None:
            raise HttpRefused(
                409, "not_following", "this server serves one version", "start it with --follow RUN to have several"
            )
        try:
            found = await asyncio.to_thread(change, folder)
        except control.Conflict as error:
            raise HttpRefused(409, "no_version", error.problem, error.hint) from None
        except (ZigguratError, OSError) as error:
            problem = error.problem if isinstance(error, ZigguratError) else str(error)
            raise HttpRefused(503, "unavailable", problem, "try again; see GET /admin/versions") from None
        return json_response(found, 200 if found.get("reached_all_workers", True) else 202)

    async def versions(request: Request) -> Response:
        call_of(request, "/admin/versions")
        if folder is not None:
            return await changed(request, control.state)
        version = service.model.version
        entry = {"version": version.short, "step": version.step, "made_at": service.model.exported_at, "current": True}
        return json_response({"mode": "fixed", "current": version.short, "versions": [entry]})

    async def pin(request: Request) -> Response:
        call = call_of(request, "/admin/pin")
        body = parse(call.body, service.limits)
        check_fields(body, ("version",))
        version = body.get("version")
        if not isinstance(version, str):
            raise wrong_field("version", version, "a version, as an answer's model.version has it")

        def pinned(versions: VersionFolder) -> dict[str, Any]:
            try:
                return control.pin(versions, version)
            except control.NotKept as error:
                raise HttpRefused(404, "unknown_version", error.problem, error.hint) from None

        return await changed(request, pinned)

    async def follow(request: Request) -> Response:
        call_of(request, "/admin/follow")
        return await changed(request, control.follow)

    async def roll_back(request: Request) -> Response:
        call_of(request, "/admin/rollback")
        return await changed(request, control.roll_back)

    router.add_api_route(
        "/admin/versions", versions, methods=["GET"], **plain_docs("The versions, and which is served")
    )
    router.add_api_route("/admin/pin", pin, methods=["POST"], **pin_docs())
    router.add_api_route(
        "/admin/follow", follow, methods=["POST"], **plain_docs("Serves the newest version, and each newer one")
    )
    router.add_api_route(
        "/admin/rollback", roll_back, methods=["POST"], **plain_docs("Serves the version before, and pins it")
    )
    return router
