"""The log of `scaling_law` as a board's data: generated, with interactions of two to six columns planted in it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from bench.benchmark import Context
from bench.quality.quality import Generated
from bench.system.scaling_law import FULL, shape
from ziggurat.data.generate import generate


def _make(context: Context) -> Path:
    """The folder with the log, ``planted.parquet``; one that an earlier run left in the cache is used again."""
    config = shape(FULL.rows)
    digest = hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:8]
    log = context.cache / f"planted-{digest}" / "planted.parquet"
    if not log.exists():
        context.say(f"generating {config.rows:,} rows")
        log.parent.mkdir(parents=True, exist_ok=True)
        generate(config, log)
    return log.parent


PLANTED = Generated(_make, ("bench/quality/planted.py", "bench/system/scaling_law.py"))
