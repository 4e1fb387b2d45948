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
from ziggurat.features.preparation.proxy.factorisation import Factorisation, Rows

LOOKED_UP = 200_000
_BATCH, _BATCHES = 8192, 122
"""Rows of a step, and steps of a million rows."""
_OTHERS = 1000


def measure(count: int) -> dict[str, Any]:
    """Returns seconds, bytes and the cost of a look-up for maps of ``count`` values into a tenth as many rows, and the
    seconds of a proxy of as many values for a million rows; its vectors here are made up."""
    random = np.random.default_rng(0)
    values = pa.array(random.permutation(count) * 7919 + 12345)  # spread, so that a plain map needs keys
    centres = random.standard_normal((1000, 9)).astype(np.float32)
    vectors_ND = centres[random.integers(0, 1000, count)]
    vectors_ND += 0.3 * random.standard_normal(vectors_ND.shape, np.float32)
    counts = ValueCounts(values, random.zipf(1.5, count).clip(1, 10**6))
    measured: dict[str, Any] = {"values": count}
    for form in ("plain", "compact"):
        config = LearnedHashConfig.model_validate({"rows": max(8, count // 10), "map": form, "min_count": 1})
        started = time.perf_counter()
        encoder, _ = config.fit_with_proxy(counts, ProxyVectors(vectors_ND))
        measured[f"{form}_build_s"] = time.perf_counter() - started
        measured[f"{form}_bytes"] = encoder.map_bytes / count
        some = values.take(pa.array(random.integers(0, count, LOOKED_UP)))
        started = time.perf_counter()
        encoder.transform(some)
        measured[f"{form}_ns"] = (time.perf_counter() - started) / LOOKED_UP * 1e9
    measured["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    measured["proxy_s"] = _proxy_s(count)
    return measured


def _proxy_s(count: int) -> float:
    """Returns the seconds of a proxy's steps on a million rows of two inputs, one of which has ``count`` values."""
    random = np.random.default_rng(1)
    keys = np.arange(1 + count + _OTHERS, dtype=np.uint64)
    model = Factorisation.initial(keys, LearnedHashConfig.model_fields["proxy_dim"].default, 0, logistic=True)
    batches = min(_BATCHES, max(1, count // _BATCH))
    inputs = np.zeros((batches, _BATCH, 3), np.int64)
    inputs[:, :, 1] = 1 + random.zipf(1.5, (batches, _BATCH)) % count
    inputs[:, :, 2] = 1 + count + random.integers(0, _OTHERS, (batches, _BATCH))
    ones = np.ones(_BATCH, np.float32)
    labels = random.integers(0, 2, (batches, _BATCH)).astype(np.float32)
    started = time.perf_counter()
    for inputs_B3, labels_B in zip(inputs, labels, strict=True):
        rows = Rows(inputs_B3.ravel(), np.ones(3 * _BATCH, np.float32), 3 * np.arange(_BATCH), labels_B, ones)
        model.step(rows, rate=0.2, decay=0.02)
    return (time.perf_counter() - started) / (batches * _BATCH) * 1e6


if __name__ == "__main__":
    write_json(Path(sys.argv[2]), measure(int(sys.argv[1])))
