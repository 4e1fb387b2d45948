"""The generated log of `scaling_law` as the data of a leaderboard, with labels from interactions of 2 to 6 columns."""

from __future__ import annotations

from pathlib import Path

from bench.benchmark import Context
from bench.quality.quality import Generated
from bench.system.scaling_law import FULL, generated_log


def _make(context: Context) -> Path:
    log, _ = generated_log(context, FULL.rows)
    return log.parent


PLANTED = Generated(_make, ("bench/quality/planted.py", "bench/system/scaling_law.py"))
