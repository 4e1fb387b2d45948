"""What a learned map of 10^7 values costs: `python -m bench.quality.compression.build COUNT OUT.json`, in a process of
its own, so that its memory is its own."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ziggurat.core.files import write_json
from ziggurat.features.encoders.compressed.learned_hash import LearnedHashConfig
from ziggurat.features.encoders.encoder import ProxyVectors, ValueCounts

LOOKED_UP = 200_000


def measure(count: int) -> dict[str, Any]:
    """Returns seconds, bytes and the cost of a look-up for maps of ``count`` values into a tenth as many rows."""
    random = np.random.default_rng(0)
    values = pa.array(random.permutation(count) * 7919 + 12345)  # spread, so that a plain map needs keys
    centres = random.standard_normal((1000, 9)).astype(np.float32)
    vectors_ND = centres[random.integers(0, 1000, count)]
    vectors_ND += 0.3 * random.standard_normal(vectors_ND.shape, np.float32)
    counts = ValueCounts(values, random.zipf(1.5, count).clip(1, 10**6))
    measured: dict[str, Any] = {"values": count}
    for form in ("plain", "compact"):
        config = LearnedHashConfig.model_validate({"rows": max(8, count // 10), "map": form})
        started = time.perf_counter()
        encoder, _ = config.fit_with_proxy(counts, ProxyVectors(vectors_ND))
        measured[f"{form}_build_s"] = time.perf_counter() - started
        measured[f"{form}_bytes"] = encoder.map_bytes / count
        some = values.take(pa.array(random.integers(0, count, LOOKED_UP)))
        started = time.perf_counter()
        encoder.transform(some)
        measured[f"{form}_ns"] = (time.perf_counter() - started) / LOOKED_UP * 1e9
    measured["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return measured


if __name__ == "__main__":
    write_json(Path(sys.argv[2]), measure(int(sys.argv[1])))
