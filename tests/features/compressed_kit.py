"""Values of a few kinds, with vectors that tell their kind, for tests of encoders whose values share rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ziggurat.features.encoders.encoder import ProxyVectors, ValueCounts

KINDS = 5


def planted(count: int, kind: str = "integer", seed: int = 0) -> tuple[ValueCounts, ProxyVectors, np.ndarray[Any, Any]]:
    """Returns values of five kinds, with vectors that lie near those of their kind, and the kinds."""
    random = np.random.default_rng(seed)
    numbers = random.permutation(count) + 1000
    values = pa.array(numbers) if kind == "integer" else pa.array([f"v{each}" for each in numbers])
    kinds = numbers % KINDS
    centres = np.random.default_rng(9).standard_normal((KINDS, 4)) * 5
    vectors = (centres[kinds] + random.standard_normal((count, 4)) * 0.05).astype(np.float32)
    counts = 10 * ((1000 / (1 + np.argsort(np.argsort(numbers)))).astype(np.int64) + 1)
    return ValueCounts(values, counts), ProxyVectors(vectors), kinds
