"""Serves an export by replicas on the hosts of a Ray cluster, behind the proxies of Ray Serve.

Each replica is the application that ``ziggurat serve`` runs, with its bounds, tokens and metrics. The proxies stand
where uvicorn's bounded connections stand otherwise: the bounds on heads, slow clients and connections are Ray's.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import socket
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from ziggurat.core.errors import ConfigError, EnvironmentMismatch
from ziggurat.core.remote.uri import local_folder
from ziggurat.features.preparation.ray_cluster import RayCluster
from ziggurat.serving.cluster.fetched_export import fetched_export
from ziggurat.serving.http.doors import Doors
from ziggurat.serving.http.limits import ServingLimits

APPLICATION = "ziggurat"
"""The name of the application in Ray Serve."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """What is served on a cluster, and how.

    Attributes:
        export: the folder or URL of the export; each host reads the folder under the same path, or fetches the URL.
        count: how many replicas there are.
        doors: who is admitted, and the address of the proxies.
        limits: the bounds of each replica.
        threads: threads of the model in each, and CPUs that it takes.
    """

    export: str
    count: int
    doors: Doors
    limits: ServingLimits
    threads: int = 1


def serve_on_ray(
    replicas: Replicas, address: str, port: int, listening: Callable[[str], None] = lambda _: None
) -> None:
    """Serves until SIGTERM or SIGINT; then the application and its replicas end.

    Args:
        replicas: what is served.
        address: ``HOST:PORT`` of the cluster's head, ``auto`` on one of its hosts, or ``local``.
        port: where the proxies listen, on every host that has a replica.
        listening: called with the URL once all replicas answer.

    Raises:
        ConfigError: the cluster serves another application already, or its proxies listen elsewhere.
        EnvironmentMismatch: Ray Serve is not installed, or no cluster can be reached.
        DataError: a host cannot open the export.
    """
    serve = _ray_serve()
    place = local_folder(replicas.export)
    export = replicas.export if place is None else str(place.resolve())
    stop = threading.Event()
    with RayCluster(address), _signals(stop):
        _start_proxies(serve, replicas.doors, port)

        def build() -> Any:  # Ray takes any other callable for the application itself
            return _application(replicas, export)

        bound = (
            serve.deployment(serve.ingress(build)())
            .options(
                name="replica",
                num_replicas=replicas.count,
                ray_actor_options={"num_cpus": replicas.threads},
                max_ongoing_requests=replicas.limits.connections,
                graceful_shutdown_timeout_s=replicas.limits.drain_s,
            )
            .bind()
        )
        try:
            _run(serve, bound, export)
            listening(_url(replicas.doors, port))
            stop.wait()
        finally:
            serve.delete(APPLICATION)
            if not serve.status().applications:
                serve.shutdown()


def _application(replicas: Replicas, export: str) -> Any:
    """Returns the application of a replica, on its host."""
    import torch

    from ziggurat.serving.http.app import application
    from ziggurat.serving.http.served_model import ServedModel

    torch.set_num_threads(replicas.threads)
    model = ServedModel.open(fetched_export(export))
    return application(model, replicas.doors, replicas.limits).asgi


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


def _run(serve: Any, bound: Any, export: str) -> None:
    if APPLICATION in serve.status().applications:
        raise ConfigError(
            f"this cluster serves an application named {APPLICATION!r} already",
            "stop the `ziggurat serve --ray` that started it, or use another cluster",
        )
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


def _url(doors: Doors, port: int) -> str:
    host = socket.gethostname() if doors.host in {"0.0.0.0", "::"} else doors.host
    return f"{'http' if doors.certificate is None else 'https'}://{host}:{port}"


@contextlib.contextmanager
def _signals(stop: threading.Event) -> Generator[None]:
    """Sets the event at SIGTERM and SIGINT."""
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
