"""Defaults that `ziggurat init` chooses by the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ziggurat.cli.init import draft_config


@pytest.mark.parametrize(("missing", "curves"), [(0.0, True), (0.1, True), (0.5, False)])
def test_curves_are_for_numbers_that_do_not_become_buckets(missing: float, *, curves: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=2_000).round(3)
    values[random.random(2_000) < missing] = np.nan
    frame = pl.DataFrame({"x": pl.Series(values).fill_nan(None), "click": random.integers(0, 2, 2_000)})
    frame.write_csv(tmp_path / "log.csv")
    text = draft_config(tmp_path / "log.csv")
    assert ("numeric_bins" in text) is curves
    assert ("bucketise" in text) is not curves
