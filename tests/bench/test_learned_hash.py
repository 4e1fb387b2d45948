"""The contestants of the benchmark learned_hash: as many bytes as they may use, maps included, and not many fewer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.quality.compression.contestants import (
    CONTESTANTS,
    Budget,
    Contestant,
    with_encoders,
    with_mixed_dimensions,
)
from bench.quality.learned_hash import half_width
from ziggurat.core.config import Config, parse_config
from ziggurat.features.encoders.encoder import ValueCounts
from ziggurat.features.encoders.encoders import EncoderConfig
from ziggurat.features.encoders.round_trip import made_up_vectors
from ziggurat.training.experiment import Experiment

VALUES = 2000


class _Section(Config):
    encoder: EncoderConfig


@pytest.mark.parametrize("ratio", [2, 10, 50])
@pytest.mark.parametrize("contestant", CONTESTANTS, ids=lambda each: each.name)
def test_a_contestant_uses_its_bytes(contestant: Contestant, ratio: int) -> None:
    budget = Budget(VALUES, 16, 64 * VALUES / ratio, 3)
    config = parse_config(_Section, {"encoder": contestant.section(budget)}).encoder
    counts = ValueCounts(pa.array(np.arange(VALUES)), VALUES // (1 + np.arange(VALUES)) + 1)
    if config.proxy is not None:
        encoder: Any = config.fit_with_proxy(counts, made_up_vectors(counts.values, config.proxy.dim))[0]
    else:
        encoder = config.fit(counts if config.counts_values else None)
    used = 64 * encoder.rows + getattr(encoder, "map_bytes", 0)
    assert 0.93 * budget.bytes < used <= budget.bytes


def test_mixed_dimensions_are_a_field_of_two_tables() -> None:
    values: dict[str, Any] = {
        "name": "small",
        "data": {"source": {"name": "csv", "files": ["log.csv"]}, "labels": [{"name": "y"}]},
        "features": [{"name": "user", "kind": "categorical"}, {"name": "item", "kind": "categorical"}],
        "embeddings": {"dim": 16},
        "model": {"name": "fm"},
    }
    budget = Budget(1000, 16, 6400, 0)
    experiment = parse_config(Experiment, with_mixed_dimensions(values, {"item": budget}))
    experiment.check()
    assert [feature.name for feature in experiment.features] == ["user", "item", "item rare"]
    first, second = experiment.features[1], experiment.features[2]
    assert (first.table, second.table) == ("item hot", "item rare")  # type: ignore[union-attr]
    hot, rare = first.encoder.values, second.encoder.hashed_rows  # type: ignore[union-attr]
    assert 0.9 * 6400 < hot * (64 + 24) + rare * 16 <= 6400
    other = with_encoders(values, {"item": {"name": "hash", "rows": 9}})
    assert other["features"][1]["encoder"] == {"name": "hash", "rows": 9}
    assert other["features"][0] == values["features"][0]


def test_half_of_an_interval() -> None:
    assert half_width([0.5]) == 0
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.302653 / 3**0.5)
