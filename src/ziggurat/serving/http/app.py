"""The ASGI application of a served model; any ASGI server may run it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ziggurat._version import __version__
from ziggurat.serving.http.access_log import AccessLog
from ziggurat.serving.http.admin_routes import admin_routes
from ziggurat.serving.http.batching.batcher import Batcher
from ziggurat.serving.http.call import Service
from ziggurat.serving.http.doors import Doors
from ziggurat.serving.http.fresh.version_metrics import VersionMetrics
from ziggurat.serving.http.fresh.version_routes import version_routes
from ziggurat.serving.http.gate import CALL, Gate, GateCall, internal
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.metrics import Metrics
from ziggurat.serving.http.page.routes import page_routes
from ziggurat.serving.http.predict_routes import predict_routes
from ziggurat.serving.http.refusals import HttpRefused
from ziggurat.serving.http.served_model import ServedModel
from ziggurat.serving.http.shedding import Shedding
from ziggurat.serving.http.v2_routes import v2_routes
from ziggurat.serving.versions.folder import VersionFolder


@dataclass(frozen=True, slots=True)
class Application:
    """A served model as an application.

    Attributes:
        asgi: the application, for an ASGI server.
        service: what answers.
        shedding: which requests are refused before they are read, for a server of ours.
    """

    asgi: Gate
    service: Service
    shedding: Shedding


def application(
    model: ServedModel,
    doors: Doors = Doors(),  # noqa: B008 - immutable
    limits: ServingLimits = ServingLimits(),  # noqa: B008 - immutable
    log: AccessLog | None = None,
    versions: VersionFolder | None = None,
) -> Application:
    """Returns the application of a model; its thread ends with the lifespan of the application.

    Args:
        model: the model.
        doors: who is admitted.
        limits: the bounds.
        log: where requests are logged; default: standard error.
        versions: the versions of the model, of which ``model`` is one; None: it is not exchanged.
    """
    metrics = Metrics(model)
    if versions is not None:
        metrics.also(VersionMetrics(versions))
    service = Service(Batcher(model, limits, metrics.batch), limits, metrics)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        service.batcher.close()
        service.large_bodies.close()

    app = FastAPI(
        title=f"ziggurat: {model.version.name}",
        version=__version__,
        summary="Predictions of a recommendation model.",
        docs_url=None,  # its page loads scripts from other hosts
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    predictions, direct = predict_routes(service)
    app.include_router(predictions)
    app.include_router(v2_routes(service))
    app.include_router(admin_routes(service, doors))
    app.include_router(page_routes(service))
    app.include_router(version_routes(service, versions))
    app.add_exception_handler(HttpRefused, _refused)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _failed)  # it is raised again, and the gate logs it
    log = AccessLog() if log is None else log
    log.lost = metrics.line_lost
    return Application(Gate(app, doors, limits, metrics, log, direct), service, Shedding(service, log))


async def _failed(request: Request, _: Exception) -> Response:
    refused = internal(request.scope[CALL])
    headers = {name.decode(): value.decode() for name, value in refused.headers()}
    return Response(refused.body(), refused.status, headers)


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        texts = {404: "there is no such path", 405: "this path has another method"}
        code = {404: "unknown_path", 405: "wrong_method"}.get(error.status_code, "refused")
        error = HttpRefused(error.status_code, code, texts.get(error.status_code, str(error.detail)))
    assert isinstance(error, HttpRefused)
    call: GateCall = request.scope[CALL]
    call.code = error.code
    headers = {name.decode(): value.decode() for name, value in error.headers()}
    return Response(error.body(), error.status, headers)
