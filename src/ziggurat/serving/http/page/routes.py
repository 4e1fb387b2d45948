"""The page at ``/``, its files, and the JSON that it reads."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ziggurat.core.errors import shorten
from ziggurat.serving.http.call import Service, call_of, json_response
from ziggurat.serving.http.page.description import description
from ziggurat.serving.http.page.status import status
from ziggurat.serving.http.refusals import HttpRefused
from ziggurat.serving.http.schema_docs import plain_docs

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def page_routes(service: Service) -> APIRouter:
    """Returns the routes."""
    router = APIRouter(tags=["page"])
    found = {each.name: each.read_bytes() for each in (files("ziggurat.serving.http.page") / "files").iterdir()}

    def file(name: str) -> Response:
        kind = _TYPES[name[name.rindex(".") :]]
        return Response(found[name], 200, _HEADERS, f"{kind}; charset=utf-8")

    async def page(request: Request) -> Response:
        call_of(request, "/")
        return file("index.html")

    async def part(request: Request, name: str) -> Response:
        call_of(request, "/page/NAME")
        if name not in found:
            raise HttpRefused(404, "unknown_path", f"the page has no file {shorten(name)}")
        return file(name)

    async def of_model(request: Request) -> Response:
        call_of(request, "/v1/model")
        return json_response(description(service.model), headers={"cache-control": "no-store"})

    async def now(request: Request) -> Response:
        call_of(request, "/v1/status")
        return json_response(status(service), headers={"cache-control": "no-store"})

    router.add_api_route("/", page, methods=["GET"], include_in_schema=False)
    router.add_api_route("/page/{name}", part, methods=["GET"], include_in_schema=False)
    router.add_api_route("/v1/model", of_model, methods=["GET"], **plain_docs("The model, and what its rows hold"))
    router.add_api_route("/v1/status", now, methods=["GET"], **plain_docs("What the server does now"))
    return router
