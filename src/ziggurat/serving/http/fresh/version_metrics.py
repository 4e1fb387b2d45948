"""What Prometheus is told of versions: taken, written, failed. One process of the host counts; any worker tells."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ziggurat.core.errors import ZigguratError
from ziggurat.serving.versions.folder import VersionFolder


class VersionMetrics(Collector):
    """Reads the figures of the updater.

    Args:
        folder: the versions.
    """

    def __init__(self, folder: VersionFolder) -> None:
        self._folder = folder

    def describe(self) -> list[Metric]:
        """Returns nothing: the names are told with the figures."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yields the figures."""
        status = self._folder.status()
        counters = (
            ("versions_taken", "Versions taken from checkpoints.", status.taken),
            ("checkpoints_merged", "Checkpoints taken together with a later one, for the budget.", status.merged),
            ("update_written_bytes", "Bytes written to the disk for versions.", status.bytes),
            ("tables_compacted", "Tables whose rows were all written anew.", status.compacted),
        )
        for name, text, value in counters:
            yield CounterMetricFamily(f"ziggurat_{name}", text, value=value)
        failures = CounterMetricFamily("ziggurat_follow_failures", "Failures of following.", labels=["kind"])
        for kind, count in status.failures.items():
            failures.add_metric([kind], count)
        yield failures
        gauges = [
            ("update_written_day_bytes", "Bytes written for versions in 24 hours.", status.day_bytes),
            ("follow_failing", "1 while following fails.", int(bool(status.problem))),
            (
                "update_waits_for_budget",
                "1 while a version waits for the budget of writes.",
                int(status.waits_until > 0),
            ),
            (
                "table_waits_for_budget",
                "1 while a table whose log has grown long waits for the budget of writes.",
                int(status.table_waits_until > 0),
            ),
            ("follow_checked_timestamp_seconds", "When the updater last looked for a checkpoint.", status.checked),
            ("checkpoint_to_served_seconds", "From a checkpoint to its version, of the last one.", status.seconds),
        ]
        if status.budget_bytes >= 0:
            gauges.append(
                ("update_budget_day_bytes", "Bytes that versions may write in 24 hours.", status.budget_bytes)
            )
        with contextlib.suppress(ZigguratError, OSError):  # the figure is left out if the folder is damaged
            pinned = self._folder.pointer().mode == "pinned"
            gauges.append(("versions_pinned", "1 while a version is pinned.", int(pinned)))
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"ziggurat_{name}", text, value=value)
