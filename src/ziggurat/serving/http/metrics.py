"""What Prometheus is told: latencies, queue, batches, versions, unknown ids.

With several workers, each writes its figures to files in a folder that they share, and any of them adds all up
(``PROMETHEUS_MULTIPROC_DIR`` of the client library).
"""

from __future__ import annotations

import os
import time

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from ziggurat.serving.http.batcher import BatchFigures
from ziggurat.serving.http.served_model import ServedModel

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Metrics:
    """The metrics of a worker.

    Args:
        model: the model that it serves.
    """

    def __init__(self, model: ServedModel) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "ziggurat_requests", "Requests answered.", ("endpoint", "status"), registry=self._registry
        )
        self._latency = Histogram(
            "ziggurat_request_seconds",
            "Seconds from the head of a request to its answer.",
            ("endpoint",),
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._stages = Histogram(
            "ziggurat_stage_seconds",
            "Seconds of a request by stage: receive, queue, encode, predict, answer.",
            ("endpoint", "stage"),
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._refused = Counter("ziggurat_refused", "Requests refused, by reason.", ("code",), registry=self._registry)
        self._batch_rows = Histogram(
            "ziggurat_batch_rows", "Rows predicted together.", registry=self._registry, buckets=_SIZES
        )
        self._batch_requests = Histogram(
            "ziggurat_batch_requests", "Requests predicted together.", registry=self._registry, buckets=_SIZES
        )
        self._rows = Counter("ziggurat_rows", "Rows predicted.", registry=self._registry)
        self._queue = Gauge(
            "ziggurat_queue_rows", "Rows that wait.", registry=self._registry, multiprocess_mode="livesum"
        )
        self._ids = Counter("ziggurat_ids", "Ids looked up, by feature.", ("feature",), registry=self._registry)
        self._unknown = Counter(
            "ziggurat_unknown_ids", "Ids of values that training did not know.", ("feature",), registry=self._registry
        )
        self._info = Gauge(
            "ziggurat_model",
            "1 for the model that is served.",
            ("name", "run", "step", "export"),
            registry=self._registry,
            multiprocess_mode="livemax",
        )
        self._exported = Gauge(
            "ziggurat_model_exported_timestamp_seconds",
            "When the model was exported.",
            registry=self._registry,
            multiprocess_mode="livemax",
        )
        self._age = Gauge(
            "ziggurat_model_age_seconds",
            "Seconds since the model was exported.",
            registry=self._registry,
            multiprocess_mode="livemax",
        )
        self._unknown_rows: dict[str, range] = {}
        self.serve(model)

    def serve(self, model: ServedModel) -> None:
        """Notes which model is served."""
        version = model.version
        self._exported_at = model.exported_at
        self._info.labels(version.name, version.run_id, str(version.step), version.export).set(1)
        self._exported.set(model.exported_at)
        encoders = model.transform.encoders
        tables = model.transform.schema.tables
        self._unknown_rows = {
            feature: encoders[table].unknown_rows for feature, table in tables.items() if table in encoders
        }

    def answered(self, endpoint: str, status: int, seconds: float, stages: dict[str, float]) -> None:
        """Notes an answer."""
        self._requests.labels(endpoint, str(status)).inc()
        self._latency.labels(endpoint).observe(seconds)
        for stage, took in stages.items():
            self._stages.labels(endpoint, stage).observe(took)

    def refused(self, code: str) -> None:
        """Notes a refusal."""
        self._refused.labels(code).inc()

    def batch(self, figures: BatchFigures) -> None:
        """Notes a batch."""
        self._batch_rows.observe(figures.rows)
        self._batch_requests.observe(figures.requests)
        self._rows.inc(figures.rows)
        for feature, unknown in self._unknown_rows.items():
            if not len(unknown):
                continue
            total = found = 0
            for each in figures.encoded:
                if feature in each.ids:
                    values = each.ids[feature].values
                    total += len(values)
                    found += int(np.count_nonzero((values >= unknown.start) & (values < unknown.stop)))
            if total:
                self._ids.labels(feature).inc(total)
                self._unknown.labels(feature).inc(found)

    def queue(self, rows: int) -> None:
        """Notes how many rows wait."""
        self._queue.set(rows)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        self._age.set(time.time() - self._exported_at)
        registry = self._registry
        if os.environ.get(MULTIPROCESS):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry)
