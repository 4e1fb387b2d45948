"""What Prometheus is told of tables on disk: hits, reads, bytes, errors."""

from __future__ import annotations

from dataclasses import fields

from prometheus_client import CollectorRegistry, Counter, Histogram

from ziggurat.serving.tables.figures import TableFigures
from ziggurat.serving.tables.lookup import Lookup

_SECONDS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
_WORDS = {
    "hits": "Rows found in the cache of a table on disk.",
    "misses": "Rows not found in the cache of a table on disk.",
    "reads": "Reads of the disk, by table.",
    "read_bytes": "Bytes read from the disk, by table.",
    "pooled_hits": "Long bags whose pooled row was known, by table.",
    "pooled_misses": "Long bags whose pooled row was not known, by table.",
    "errors": "Batches for which a table could not be read.",
}


class TableMetrics:
    """The metrics of tables on disk.

    Args:
        registry: where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = {
            each.name: Counter(f"ziggurat_table_{each.name}", _WORDS[each.name], ("table",), registry=registry)
            for each in fields(TableFigures)
        }
        self._seconds = Histogram(
            "ziggurat_table_read_seconds",
            "Seconds that the reads of a batch took, of all tables together.",
            registry=registry,
            buckets=_SECONDS,
        )
        self._batch_reads = Histogram(
            "ziggurat_table_batch_reads",
            "Reads of the disk that batches needed that needed any.",
            registry=registry,
            buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000),
        )

    def note(self, lookup: object) -> None:
        """Notes what look-ups did since the last call."""
        if not isinstance(lookup, Lookup):
            return
        found = lookup.figures.taken()
        for table, figures in found.tables.items():
            for name, counter in self._counters.items():
                value = getattr(figures, name)
                if value:
                    counter.labels(table).inc(value)
        for seconds in found.seconds:
            self._seconds.observe(seconds)
        reads = found.total.reads
        if reads:
            self._batch_reads.observe(reads)
