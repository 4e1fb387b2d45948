"""Logs that are drawn: the tutorial's, one with rare positives, one of habits, one of wide whole numbers and hashes."""

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


def habits(folder: Path, data: Path | None) -> None:
    """What 900 people open again and again on their phones, beside what they never opened: 270,000 rows.

    Everybody has some 5 to 80 of 3,000 apps and opens them by habit, each at its own time of the day and mostly in one
    kind of place. Each use is a positive row, beside two rows of the same moment whose app the person does not have. So
    a pair of ids recurs, and decides.
    """
    del data
    draw = np.random.default_rng(2)
    users, apps, uses = 900, 3_000, 90_000
    popularity_A = 1 / np.arange(3, apps + 3) ** 0.9
    popularity_A = draw.permutation(popularity_A / popularity_A.sum())
    sizes_U = np.clip(draw.lognormal(2.9, 0.7, users), 5, 80).astype(int)
    owned = [draw.choice(apps, size, replace=False, p=popularity_A) for size in sizes_U]
    habits_U = [draw.dirichlet(np.full(size, 0.7)) for size in sizes_U]
    activity_U = draw.lognormal(0, 1, users)
    user_E = draw.choice(users, uses, p=activity_U / activity_U.sum())
    app_E = np.array([draw.choice(owned[user], p=habits_U[user]) for user in user_E])
    part_A, place_A, home_U = draw.integers(0, 6, apps), draw.integers(0, 3, apps), draw.integers(0, 60, users)
    usual_E = draw.random((uses, 2)) < 0.6
    part_E = np.where(usual_E[:, 0], part_A[app_E], draw.integers(0, 6, uses))
    place_E = np.where(usual_E[:, 1], place_A[app_E], draw.integers(0, 3, uses))
    context = {
        "day_part": np.array(["night", "dawn", "morning", "noon", "afternoon", "evening"])[part_E],
        "weekday": draw.integers(0, 7, uses),
        "place": np.array(["home", "work", "elsewhere"])[place_E],
        "weather": draw.choice(["sun", "cloud", "rain", "snow"], uses, p=[0.4, 0.3, 0.25, 0.05]),
        "town": home_U[user_E],
    }
    never_E2 = draw.integers(0, apps, (uses, 2))
    has_UA = np.zeros((users, apps), dtype=bool)
    for user, own in enumerate(owned):
        has_UA[user, own] = True
    while (again := has_UA[user_E[:, None], never_E2]).any():
        never_E2[again] = draw.integers(0, apps, int(again.sum()))
    opened = pl.DataFrame({"user": user_E, "app": app_E, **context, "opened": np.ones(uses, dtype=np.int64)})
    not_opened = [
        opened.with_columns(pl.Series("app", never_E2[:, which]), pl.lit(0, pl.Int64).alias("opened"))
        for which in (0, 1)
    ]
    frame = pl.concat([opened, *not_opened])
    frame[draw.permutation(len(frame))].write_csv(folder / "uses.csv")
