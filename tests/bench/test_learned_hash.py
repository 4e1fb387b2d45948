"""The benchmark learned_hash: contestants of as many bytes, maps included, equal pooling, and what is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.benchmark import Context
from bench.quality.compression.build import measure
from bench.quality.compression.contestants import (
    CONTESTANTS,
    Budget,
    Contestant,
    with_encoders,
    with_mixed_dimensions,
)
from bench.quality.compression.logs import LOGS, generated
from bench.quality.compression.trial import run
from bench.quality.learned_hash import half_width, left_out
from ziggurat.core.config import Config, parse_config
from ziggurat.features.encoders.compressed.learned_hash import MIN_COUNT
from ziggurat.features.encoders.encoder import ValueCounts
from ziggurat.features.encoders.encoders import EncoderConfig
from ziggurat.features.encoders.round_trip import made_up_vectors
from ziggurat.training.experiment import Experiment

VALUES = 2000


class _Section(Config):
    encoder: EncoderConfig


@pytest.mark.parametrize("common", [1, 10], ids=["most values are rare", "none is rare"])
@pytest.mark.parametrize("ratio", [2, 10, 50])
@pytest.mark.parametrize("contestant", CONTESTANTS, ids=lambda each: each.name)
def test_a_contestant_uses_its_bytes(contestant: Contestant, ratio: int, common: int) -> None:
    counted = VALUES // (1 + np.arange(VALUES)) + common
    budget = Budget(VALUES, int(np.count_nonzero(counted >= MIN_COUNT)), 16, 64 * VALUES / ratio, 3)
    config = parse_config(_Section, {"encoder": contestant.section(budget)}).encoder
    counts = ValueCounts(pa.array(np.arange(VALUES)), counted)
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
    budget = Budget(1000, 500, 16, 6400, 0)
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


def test_what_is_left_out_of_the_grid_is_told() -> None:
    (note,) = left_out()
    assert note.endswith("census at 50x; generated at 2x, 5x; generated with more than 3 of 5 seeds")


def test_rows_of_two_codes_are_pooled_as_others_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean over the rows of all ids would halve what an id of two rows adds."""
    monkeypatch.setattr("bench.quality.collection.sets.LabelledLog.files", lambda *arguments: None)
    (values,) = {id(each): each.values for each in LOGS if each.name == "amazon_beauty"}.values()
    poolings = [each.get("pooling") for each in values(_context(tmp_path))["features"] if each["kind"] == "sequence"]
    assert poolings == ["sum"]


def test_a_row_of_training_takes_less_than_the_whole_training(tmp_path: Path) -> None:
    values = generated(_context(tmp_path))
    values["training"] = {**values["training"], "log_every": 2}
    outcome = run({"experiment": values, "tables": {"item": False}}, tmp_path)
    assert 0 < outcome["row_s"] < outcome["train_s"] / (outcome["steps"] * values["training"]["batch_size"])


def test_the_proxy_is_part_of_what_a_map_costs() -> None:
    assert measure(20_000)["proxy_s"] > 0


def _context(folder: Path) -> Context:
    return Context(quick=True, cache=folder, data=folder, say=lambda text: None)
