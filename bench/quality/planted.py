"""The log of `scaling_law` as a board's data: generated, with interactions of two to six columns planted in it."""

from __future__ import annotations

from pathlib import Path

from bench.benchmark import Context
from bench.quality.quality import Generated
from bench.system.scaling_law import FULL, generated_log


def _make(context: Context) -> Path:
    log, _ = generated_log(context, FULL.rows)
    return log.parent


PLANTED = Generated(_make, ("bench/quality/planted.py", "bench/system/scaling_law.py"))
