"""``/v1/status``: what the server does now, in JSON; figures are those of all workers unless they say otherwise."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from typing import Any

from prometheus_client.metrics_core import Metric

from ziggurat.serving.drift.window import LEAST_SCORES, WINDOW_S, Drift
from ziggurat.serving.http.call import Service
from ziggurat.serving.http.served_model import ServedModel
from ziggurat.serving.model.compiled_code import words
from ziggurat.serving.tables.lookup import Lookup
from ziggurat.serving.tables.stores import DiskTable, LoadedTable

Json = dict[str, Any]
LIMITS = (0.1, 0.25)
"""PSI from which on a drift is worth a look, and from which on it calls for action."""


def status(service: Service) -> Json:
    """Returns the live figures of a service.

    Counts grow from the start of the server; who polls takes differences.
    """
    model = service.model
    service.metrics.queue(service.batcher.queued_rows)
    families = {each.name: each for each in service.metrics.families()}
    return {
        "at": round(time.time(), 3),
        "model": model.version.to_json(),
        "exported_at": model.exported_at,
        "loaded_at": model.loaded_at,
        "dense": words(model.scorer.code),
        "worker": os.getpid(),
        "stopping": service.stopping,
        "endpoints": _endpoints(families),
        "refused": {labels["code"]: value for labels, value in _samples(families, "ziggurat_refused", "_total")},
        "rows": _one(families, "ziggurat_rows", "_total"),
        "queue_rows": _one(families, "ziggurat_queue_rows"),
        "batches": {
            "count": _one(families, "ziggurat_batch_rows", "_count"),
            "rows": _one(families, "ziggurat_batch_rows", "_sum"),
            "requests": _one(families, "ziggurat_batch_requests", "_sum"),
        },
        "drift": _drift(service.metrics.drift()),
        **_stored(model, families),
    }


def _stored(model: ServedModel, families: dict[str, Metric]) -> Json:
    """Returns where the tables are, and how often rows were found in memory."""
    lookup, manifest = model.scorer.lookup, model.scorer.manifest
    counted = {
        name: {labels["table"]: value for labels, value in _samples(families, f"ziggurat_table_{name}", "_total")}
        for name in ("hits", "misses", "reads", "read_bytes")
    }
    tables: list[Json] = []
    for entry in manifest.tables:
        size = entry.layout(manifest.precision).bytes
        found: Json = {"name": entry.name, "rows": entry.rows, "dim": entry.dim, "side": entry.side}
        table = lookup.tables.get(entry.name) if isinstance(lookup, Lookup) else None
        if isinstance(table, DiskTable):
            hits, misses = (counted[name].get(entry.name, 0.0) for name in ("hits", "misses"))
            pooled = 0 if table.pooled is None else table.pooled.bytes
            found |= {"place": "disk", "memory_bytes": table.cache.bytes + pooled, "disk_bytes": size}
            found |= {"hits": hits, "misses": misses, "hit_rate": hits / (hits + misses) if hits + misses else None}
        else:
            held = entry.rows * table.place.width if isinstance(table, LoadedTable) else size
            found |= {"place": "memory", "memory_bytes": held, "disk_bytes": size}
        tables.append(found)
    return {"tables": tables, **{name: sum(counted[name].values()) for name in ("reads", "read_bytes")}}


def _endpoints(families: dict[str, Metric]) -> Json:
    """Returns endpoint -> its answers by status, its latencies, and the seconds by stage."""
    found: dict[str, Json] = {}

    def of(name: str) -> Json:
        return found.setdefault(name, {"answers": {}, "seconds": {"count": 0, "sum": 0.0, "buckets": []}, "stages": {}})

    for labels, value in _samples(families, "ziggurat_requests", "_total"):
        of(labels["endpoint"])["answers"][labels["status"]] = value
    for labels, value in _samples(families, "ziggurat_request_seconds", "_bucket"):
        limit = float(labels["le"])
        of(labels["endpoint"])["seconds"]["buckets"].append([None if math.isinf(limit) else limit, value])
    for part in ("sum", "count"):
        for labels, value in _samples(families, "ziggurat_request_seconds", f"_{part}"):
            of(labels["endpoint"])["seconds"][part] = value
        for labels, value in _samples(families, "ziggurat_stage_seconds", f"_{part}"):
            of(labels["endpoint"])["stages"].setdefault(labels["stage"], {})[part] = value
    for each in found.values():
        each["seconds"]["buckets"].sort(key=lambda bucket: math.inf if bucket[0] is None else bucket[0])
    return found


def _drift(drift: Drift) -> Json:
    return {
        "window_s": WINDOW_S,
        "least_scores": LEAST_SCORES,
        "limits": LIMITS,
        "labels": {
            label: {
                "scores": each.scores,
                "psi": each.index,
                "edges": each.bins.edges,
                "counts": each.counts,
                "expected": each.bins.counts,
            }
            for label, each in drift.labels.items()
        },
        "unknown": {
            feature: {
                "ids": counts.ids,
                "share": counts.share if counts.ids else None,
                "expected": drift.expected[feature].share if feature in drift.expected else None,
            }
            for feature, counts in drift.unknown.items()
        },
    }


def _samples(families: dict[str, Metric], name: str, suffix: str = "") -> Iterable[tuple[dict[str, str], float]]:
    family = families.get(name)
    for sample in () if family is None else family.samples:
        if sample.name == name + suffix:
            yield sample.labels, sample.value


def _one(families: dict[str, Metric], name: str, suffix: str = "") -> float:
    return sum(value for _, value in _samples(families, name, suffix))
