"""Serves an export by replicas on the hosts of a Ray cluster, behind the proxies of Ray Serve.

Each replica is the application that ``ziggurat serve`` runs, with its bounds, tokens and metrics. The proxies stand
where uvicorn's bounded connections stand otherwise: the bounds on heads, slow clients and connections are Ray's.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from ziggurat.core.errors import ConfigError, EnvironmentMismatch
from ziggurat.core.remote.uri import local_folder
from ziggurat.features.preparation.ray_cluster import RayCluster
from ziggurat.serving.cluster.fetched_export import fetched_export
from ziggurat.serving.http.doors import Doors
from ziggurat.serving.http.limits import ServingLimits

APPLICATION = "ziggurat"
"""The name of the application in Ray Serve."""


def serve_on_ray(
    export: str | Path,
    address: str,
    *,
    replicas: int = 1,
    host: str = "127.0.0.1",
    port: int = 8080,
    threads: int = 1,
    token_file: str | Path | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    limits: ServingLimits = ServingLimits(),  # noqa: B008 - immutable
    log: bool = True,
    listening: Callable[[str], None] = lambda url: None,
) -> None:
    """Serves an export by replicas until SIGTERM or SIGINT; then the application and its replicas end.

    Args:
        export: its folder, which each host has under the same path, or its URL, which each host fetches once.
        address: ``HOST:PORT`` of the cluster's head, ``auto`` on one of its hosts, or ``local``.
        replicas: how many there are.
        host, port: where the proxies listen, on every host of the cluster.
        threads: threads of the model in each replica, and CPUs that it takes.
        token_file: the file with the names, rights, rates and hashes of tokens.
        tls_cert, tls_key: files of the certificate and its key, which each host has under the same path.
        limits: the bounds of each replica.
        log: whether replicas log each request.
        listening: called with the URL once all replicas answer.

    Raises:
        ConfigError: Ray Serve runs on the cluster already, or other machines could reach it without tokens or TLS.
        EnvironmentMismatch: Ray Serve is not installed, no cluster can be reached, or replicas do not start.
    """
    serve = _ray_serve()
    if port == 0:
        raise ConfigError("--port 0: the proxies of a cluster listen on one port of every host", "name a port")
    tokens, certificate, key = (None if each is None else Path(each) for each in (token_file, tls_cert, tls_key))
    doors = Doors.read(host, tokens, certificate, key, replicas)
    local = local_folder(str(export))
    place = str(export) if local is None else str(local.resolve())
    stop = threading.Event()
    with RayCluster(address), _signals(stop):
        _check_free(serve)
        _start_proxies(serve, doors, port)

        def build() -> Any:  # Ray takes any other callable for the application itself
            return _application(place, doors, limits, threads, log)

        bound = (
            serve.deployment(serve.ingress(build)())
            .options(
                name="replica",
                num_replicas=replicas,
                ray_actor_options={"num_cpus": threads},
                max_ongoing_requests=limits.connections,
                graceful_shutdown_timeout_s=limits.drain_s,
            )
            .bind()
        )
        try:
            _run(serve, bound, place)
            listening(doors.url(port))
            stop.wait()
        finally:
            serve.delete(APPLICATION)
            if not serve.status().applications:
                serve.shutdown()


def _application(export: str, doors: Doors, limits: ServingLimits, threads: int, log: bool) -> Any:
    """Returns the application of a replica, on its host."""
    import torch

    from ziggurat.serving.http.access_log import AccessLog
    from ziggurat.serving.http.app import application
    from ziggurat.serving.http.served_model import ServedModel

    torch.set_num_threads(threads)
    model = ServedModel.open(fetched_export(export))
    return application(model, doors, limits, AccessLog() if log else AccessLog(None)).asgi


def _ray_serve() -> Any:
    try:
        return importlib.import_module("ray.serve")
    except ImportError as error:
        raise EnvironmentMismatch(
            f"--ray: Ray Serve is not installed ({error})", "pip install 'ziggurat[serve,ray]' 'ray[serve]'"
        ) from None


def _start_proxies(serve: Any, doors: Doors, port: int) -> None:
    options = {
        "host": doors.host,
        "port": port,
        "location": "EveryNode",
        "ssl_certfile": None if doors.certificate is None else str(doors.certificate.resolve()),
        "ssl_keyfile": None if doors.key is None else str(doors.key.resolve()),
    }
    serve.start(http_options=options)


def _check_free(serve: Any) -> None:
    """Refuses a cluster on which Ray Serve runs: its proxies would keep their own host, port and TLS.

    Raises:
        ConfigError: it does.
    """
    status = serve.status()
    if APPLICATION in status.applications:
        raise ConfigError(
            f"this cluster serves an application named {APPLICATION!r} already",
            "stop the `ziggurat serve --ray` that started it, or use another cluster",
        )
    if status.proxies:
        raise ConfigError(
            "Ray Serve runs on this cluster already, and its proxies would not take --host, --port, --token-file and "
            "TLS from here",
            "end it with `serve shutdown`, or use another cluster",
        )


def _run(serve: Any, bound: Any, export: str) -> None:
    try:
        serve.run(bound, name=APPLICATION, route_prefix="/")
    except RuntimeError as error:
        found = serve.status().applications.get(APPLICATION)
        messages = [each.message for each in found.deployments.values()] if found else [str(error)]
        text = " ".join(" ".join(messages).split())
        raise EnvironmentMismatch(
            f"{export}: its replicas do not start: {text[-600:]}",
            "put the export into a folder that all hosts have under the same path, or into an object store, and "
            "install the same version of ziggurat on each",
        ) from None


@contextlib.contextmanager
def _signals(stop: threading.Event) -> Generator[None]:
    """Sets the event at SIGTERM and SIGINT."""
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
