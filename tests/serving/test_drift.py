"""The population stability index, the window that it is computed over, and the metrics and status that show it."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.http_kit import Exported, exported, running
from ziggurat.serving.artefact.reference import IdCounts, Reference, ScoreBins
from ziggurat.serving.drift.psi import psi
from ziggurat.serving.drift.window import LEAST_SCORES, SLOT_S, SLOTS, Window

BINS = ScoreBins((0.2, 0.5), (100, 300, 100), 0.4)
REFERENCE = Reference("validation", 500, {"click": BINS}, {"item": IdCounts(500, 5)})


@pytest.fixture(scope="module")
def export() -> Exported:
    return exported()


def test_the_index_is_the_sum_over_bins() -> None:
    before, after = np.array([100, 300, 100]), np.array([300, 100, 100])
    p, q = (before + 0.5) / 501.5, (after + 0.5) / 501.5
    expected = sum((b - a) * math.log(b / a) for a, b in zip(p, q, strict=True))
    assert psi(before, after) == pytest.approx(expected)
    assert psi(before, after) == psi(after, before) > 0.25
    assert psi(before, before) == 0
    assert psi(before, 2 * before) < 1e-5
    assert math.isfinite(psi([500, 0], [0, 500]))


def test_without_drift_the_index_is_as_small_as_the_docs_say() -> None:
    draw = np.random.default_rng(0)
    expected = [1000] * 10
    found = [psi(expected, draw.multinomial(LEAST_SCORES, [0.1] * 10)) for _ in range(200)]
    assert np.mean(found) == pytest.approx(9 * (1 / LEAST_SCORES + 1 / 10_000), rel=0.2)
    assert max(found) < 0.1


def scores(*values: float) -> dict[str, Any]:
    return {"click": np.array(values, np.float32)}


def test_the_window_counts_bins_and_forgets_after_an_hour() -> None:
    now = [1_000_000.0]
    window = Window(REFERENCE, ("item",), clock=lambda: now[0])
    window.add(scores(0.1, 0.2, 0.49, 0.5, 0.9, float("nan")), {"item": IdCounts(6, 2)})
    assert window.drift().labels["click"].counts == (1, 2, 2)  # a bin holds its lower limit
    assert window.drift().labels["click"].index is None
    now[0] += SLOT_S * (SLOTS - 1)
    window.add(scores(*[0.3] * LEAST_SCORES), {})
    found = window.drift()
    assert found.labels["click"].counts == (1, 2 + LEAST_SCORES, 2)
    assert found.labels["click"].index == psi(BINS.counts, (1, 2 + LEAST_SCORES, 2))
    assert found.unknown["item"] == IdCounts(6, 2)
    assert found.expected["item"].share == 0.01
    now[0] += SLOT_S
    found = window.drift()
    assert found.labels["click"].counts == (0, LEAST_SCORES, 0)
    assert found.unknown["item"].share == 0
    now[0] += SLOT_S * SLOTS
    window.add(scores(0.1), {})
    assert window.drift().labels["click"].counts == (1, 0, 0)


def test_without_a_reference_ids_are_counted_alone() -> None:
    window = Window(None, ("item",))
    window.add(scores(0.1), {"item": IdCounts(4, 1)})
    found = window.drift()
    assert (found.labels, found.expected) == ({}, {})
    assert found.unknown["item"].share == 0.25


def test_processes_add_up_what_they_share_of_one_version(tmp_path: Path) -> None:
    program = (
        "import os, sys, pathlib\n"
        "from tests.serving.test_drift import REFERENCE, Window, IdCounts, scores\n"
        "for version in ('1-a', '1-a', '2-b'):\n"
        "    if os.fork():\n"
        "        assert os.wait()[1] == 0\n"
        "    else:\n"
        "        window = Window(REFERENCE, ('item',), pathlib.Path(sys.argv[1]), version)\n"
        "        window.add(scores(0.1, 0.9), {'item': IdCounts(2, 1)})\n"
        "        break\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)  # it starts a process for each window
    mine = Window(REFERENCE, ("item",), tmp_path, "1-a")
    mine.add(scores(0.3), {})
    found = mine.drift()
    assert found.labels["click"].counts == (2, 1, 2)  # those of processes that have ended, too
    assert found.unknown["item"] == IdCounts(4, 2)
    assert Window(REFERENCE, ("item",), tmp_path, "2-b").drift().labels["click"].counts == (1, 0, 1)


def metric(text: str, name: str) -> float | None:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return None if found is None else float(found[1])


@pytest.mark.parametrize("workers", [1, 2])
def test_metrics_and_status_show_drift_and_unknown_ids(export: Exported, workers: int) -> None:
    rows = export.rows[:300]
    strange = [{**row, "user": f"stranger {number}"} for number, row in enumerate(rows)]
    assert export.model.reference is not None
    bins = export.model.reference.scores["click"]
    expected = np.zeros(len(bins.counts), np.int64)
    for some in (rows, strange):
        found = np.searchsorted(bins.edges, export.predictions(some)[:, 0].astype(np.float64), side="right")
        expected += np.bincount(found, minlength=len(bins.counts))
    with running(export.folder, "--workers", str(workers)) as server:
        client = server.client
        for some in (rows, strange):
            assert 'ziggurat_score_psi{label="click"}' not in client.get("/metrics").text
            client.post("/v1/predict", json={"rows": some}).raise_for_status()
        until = time.monotonic() + 60
        rows_seen = 'ziggurat_score_window_rows{label="click"}'
        while metric(text := client.get("/metrics").text, rows_seen) != 600:  # a batch is counted after its answer
            assert time.monotonic() < until, text
        index = metric(text, 'ziggurat_score_psi{label="click"}')
        assert index == pytest.approx(psi(bins.counts, expected.tolist()), abs=5e-3)  # a score may cross a limit
        assert metric(text, 'ziggurat_unknown_id_share{feature="user"}') == 0.5
        assert metric(text, 'ziggurat_validation_unknown_id_share{feature="user"}') == 0
        status = client.get("/v1/status").json()
        drift = status["drift"]
        assert drift["labels"]["click"]["psi"] == index
        assert sum(drift["labels"]["click"]["counts"]) == 600
        assert drift["unknown"]["user"] == {"ids": 600, "share": 0.5, "expected": 0.0}
        predicted = status["endpoints"]["/v1/predict"]
        assert predicted["answers"] == {"200": 2}
        assert predicted["seconds"]["count"] == predicted["seconds"]["buckets"][-1][1] == 2
        assert predicted["seconds"]["buckets"][-1][0] is None
        assert predicted["stages"]["predict"]["count"] == 2
        assert (status["rows"], status["batches"]["rows"]) == (600, 600)
        assert status["model"] == export.model.version.to_json()
        tables = {each["name"]: each for each in status["tables"]}
        assert tables.keys() == {entry.name for entry in export.model.scorer.manifest.tables}
        assert all(each["place"] == "memory" and each["disk_bytes"] % 4096 == 0 for each in tables.values())
