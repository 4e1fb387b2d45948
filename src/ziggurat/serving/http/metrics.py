"""What Prometheus and the page are told: latencies, queue, batches, versions, unknown ids, drift.

With several workers, each writes its figures to files in a folder that they share, and any of them adds all up
(``PROMETHEUS_MULTIPROC_DIR`` of the client library).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from ziggurat.serving.artefact.reference import IdCounts
from ziggurat.serving.drift.unknown_ids import count_unknown, unknown_rows
from ziggurat.serving.drift.window import Drift, Window
from ziggurat.serving.http.batching.batcher import BatchFigures
from ziggurat.serving.http.served_model import ServedModel, Version
from ziggurat.serving.http.table_metrics import TableMetrics

M = TypeVar("M", Counter, Histogram)
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True)
class _Drift:
    """The window of a model.

    Attributes:
        export: which export.
        unknown_rows: feature -> its ids of values that training did not know.
        window: its window.
    """

    export: str
    unknown_rows: dict[str, range]
    window: Window


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
        self._lost_lines = Counter(
            "ziggurat_log_lines_lost", "Lines of the log that could not be written.", registry=self._registry
        )
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
        self._tables = TableMetrics(self._registry)
        self._drift: _Drift | None = None
        self._also: list[Collector] = []
        self._of_labels: dict[tuple[Any, ...], Counter | Histogram] = {}
        self.serve(model)

    def also(self, collector: Collector) -> None:
        """Adds metrics that are not this worker's."""
        self._also.append(collector)

    def serve(self, model: ServedModel) -> None:
        """Notes which model is served."""
        version, self._lookup = model.version, model.scorer.lookup
        self._version, self._exported_at = version, model.exported_at
        if self._drift is not None and self._drift.export == version.export:
            return  # the window goes on: its reference is that of the export, and traffic drifts over many versions
        shared = os.environ.get(MULTIPROCESS)
        unknown = unknown_rows(model.transform)
        window = Window(model.reference, tuple(unknown), Path(shared) if shared else None, version.export)
        self._drift = _Drift(version.export, unknown, window)

    def answered(self, endpoint: str, status: int, seconds: float, stages: dict[str, float]) -> None:
        """Notes an answer."""
        self._labelled(self._requests, endpoint, str(status)).inc()
        self._labelled(self._latency, endpoint).observe(seconds)
        for stage, took in stages.items():
            self._labelled(self._stages, endpoint, stage).observe(took)

    def _labelled(self, metric: M, *labels: str) -> M:
        """Returns a metric of some labels, which the client library looks up slowly."""
        key = id(metric), *labels
        found = self._of_labels.get(key)
        if found is None:
            found = self._of_labels[key] = metric.labels(*labels)
        return cast("Any", found)

    def refused(self, code: str) -> None:
        """Notes a refusal."""
        self._refused.labels(code).inc()

    def line_lost(self) -> None:
        """Notes that a line of the log could not be written."""
        self._lost_lines.inc()

    def batch(self, figures: BatchFigures) -> None:
        """Notes a batch."""
        self._queue.set(figures.queued_rows)
        self._batch_rows.observe(figures.rows)
        self._batch_requests.observe(figures.requests)
        self._rows.inc(figures.rows)
        self._tables.note(figures.model.scorer.lookup)
        drift = self._drift
        if drift is None or figures.model.version.export != drift.export:
            return  # the batch began before the model was exchanged
        ids = _ids(figures, drift.unknown_rows)
        for feature, counts in ids.items():
            self._labelled(self._ids, feature).inc(counts.ids)
            self._labelled(self._unknown, feature).inc(counts.unknown)
        drift.window.add(figures.outputs, ids)

    def queue(self, rows: int) -> None:
        """Notes how many rows wait."""
        self._queue.set(rows)

    def drift(self) -> Drift:
        """Returns the scores and unknown ids of the last hour."""
        assert self._drift is not None
        return self._drift.window.drift()

    def families(self) -> list[Metric]:
        """Returns the metrics of all workers, but for those of the drift."""
        return list(self._added_up().collect())

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        self._tables.note(self._lookup)
        served = _ModelCollector(self._version, self._exported_at)
        others = _registry_of(served, _DriftCollector(self.drift()), *self._also)
        return generate_latest(self._added_up()) + generate_latest(others)

    def _added_up(self) -> CollectorRegistry:
        if not os.environ.get(MULTIPROCESS):
            return self._registry
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        return registry


class _ModelCollector(Collector):
    """Which model the worker serves that is asked, and how old it is: series of versions before are not kept."""

    def __init__(self, version: Version, exported_at: float) -> None:
        self._version, self._exported_at = version, exported_at

    def collect(self) -> Iterator[Metric]:
        """Yields them."""
        version = self._version
        info = GaugeMetricFamily(
            "ziggurat_model",
            "1 for the model that is served.",
            labels=("name", "run", "step", "export", "version"),
        )
        info.add_metric((version.name, version.run_id, str(version.step), version.export, version.short), 1)
        yield info
        yield GaugeMetricFamily(
            "ziggurat_model_exported_timestamp_seconds", "When the model was exported.", self._exported_at
        )
        age_s = time.time() - self._exported_at
        yield GaugeMetricFamily("ziggurat_model_age_seconds", "Seconds since the model was exported.", age_s)


class _DriftCollector(Collector):
    """The metrics of a window, as they are when they are asked for."""

    def __init__(self, drift: Drift) -> None:
        self._drift = drift

    def collect(self) -> Iterator[Metric]:
        """Yields them."""
        rows = GaugeMetricFamily("ziggurat_score_window_rows", "Scores of the last hour.", labels=("label",))
        index = GaugeMetricFamily(
            "ziggurat_score_psi",
            "Population stability index of the last hour's scores against the validation's; absent below 500 scores.",
            labels=("label",),
        )
        for label, each in self._drift.labels.items():
            rows.add_metric((label,), each.scores)
            if each.index is not None:
                index.add_metric((label,), each.index)
        share = GaugeMetricFamily(
            "ziggurat_unknown_id_share", "Share of unknown ids in the last hour.", labels=("feature",)
        )
        expected = GaugeMetricFamily(
            "ziggurat_validation_unknown_id_share", "Share of unknown ids in the validation.", labels=("feature",)
        )
        for feature, counts in self._drift.unknown.items():
            if counts.ids:
                share.add_metric((feature,), counts.share)
        for feature, counts in self._drift.expected.items():
            expected.add_metric((feature,), counts.share)
        yield from (rows, index, share, expected)


def _registry_of(*collectors: Collector) -> CollectorRegistry:
    registry = CollectorRegistry()
    for each in collectors:
        registry.register(each)
    return registry


def _ids(figures: BatchFigures, unknown_rows: dict[str, range]) -> dict[str, IdCounts]:
    """Returns feature -> its ids in a batch."""
    found: dict[str, IdCounts] = {}
    for feature, unknown in unknown_rows.items():
        values = [each.ids[feature].values for each in figures.encoded if feature in each.ids]
        total = sum(map(len, values))
        if total:
            found[feature] = IdCounts(total, sum(count_unknown(each, unknown) for each in values))
    return found
