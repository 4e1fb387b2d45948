"""Logs that are drawn: the tutorial's, one with rare positives, one whose ids are wide whole numbers and hashes."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import polars as pl

from ziggurat.core.config import parse_config
from ziggurat.data.synthetic.config import GeneratorConfig
from ziggurat.data.synthetic.generate import generate
from ziggurat.data.synthetic.shapes import SHAPES

TUTORIAL_ROWS, TUTORIAL_SEED = 200_000, 7
_START = datetime.datetime(2026, 3, 1)


def tutorial(folder: Path, data: Path | None) -> None:
    """The log of the tutorial, with its two labels."""
    del data
    settings = SHAPES["demo"](TUTORIAL_ROWS, TUTORIAL_SEED).model_dump() | {"format": "csv"}
    generate(parse_config(GeneratorConfig, settings), folder / "impressions.csv")
    for path in folder.glob("*.json"):
        path.unlink()


def rare_positives(folder: Path, data: Path | None) -> None:
    """60,000 rows, 1,000 of them to validate and 5,000 to test by ``init``'s split, would not rank models: 12 positives
    would test. So test rows are drawn beside them, by the same law: only the item matters, and .25 % are positive."""
    del data
    draw = np.random.default_rng(0)
    pull_I = draw.normal(size=400)
    for name, rows in (("log_train", 60_000), ("log_test", 200_000)):
        users_B, items_B = draw.integers(0, 3000, rows), draw.integers(0, 400, rows)
        positive_B = draw.random(rows) < 1 / (1 + np.exp(6.6 - pull_I[items_B]))
        frame = pl.DataFrame({"user": users_B, "item": items_B, "conv": positive_B.astype(np.int64)})
        frame.write_csv(folder / f"{name}.csv")


def wide_ids(folder: Path, data: Path | None) -> None:
    """60,000 rows of .8 % positives: numbers of networks and channels, a hash beyond 63 bits, a month-first time."""
    del data
    draw = np.random.default_rng(1)
    rows = 60_000
    numbers_N, channels_C = (
        draw.choice(360_000, 4_000, replace=False),
        draw.choice(np.arange(3, 500), 160, replace=False),
    )
    pull_N, pull_C = draw.normal(size=4_000), 1.5 * draw.normal(size=160)
    network_B, channel_B = draw.integers(0, 4_000, rows), draw.integers(0, 160, rows)
    positive_B = draw.random(rows) < 1 / (1 + np.exp(5.5 - pull_N[network_B] - pull_C[channel_B]))
    times = [(_START + datetime.timedelta(seconds=7 * row)).strftime("%m/%d/%Y %H:%M") for row in range(rows)]
    hashes_B = (network_B.astype(np.uint64) + np.uint64(1)) * np.uint64(11400714819323198485)
    pl.DataFrame(
        {
            "network": numbers_N[network_B],
            "slot": channels_C[channel_B],
            "url_hash": hashes_B,
            "at": times,
            "installed": positive_B.astype(np.int64),
        }
    ).write_csv(folder / "installs.csv")
