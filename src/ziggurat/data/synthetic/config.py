"""The config of a generated log: its columns, the distribution of ids, and the planted interactions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from ziggurat.core.config import Config
from ziggurat.core.schema import duplicates

IdStyle = Literal["integer", "text", "hex"]


class NumericColumn(Config):
    """A log-normal number: ``lowest + median · exp(spread · g)``, g standard normal."""

    name: str
    """Column name."""
    median: float = Field(default=10.0, gt=0)
    """Median above ``lowest``."""
    spread: float = Field(default=1.0, gt=0)
    """Standard deviation of the logarithm; 2 or more is heavy-tailed."""
    lowest: float = 0.0
    """The least possible value."""
    integer: bool = False
    """Whether to round down to integers; otherwise values are rounded to three decimals."""
    missing: float = Field(default=0.0, ge=0, lt=1)
    """Share of empty cells."""


class CategoricalColumn(Config):
    """One id per row, distributed by Zipf's law: P(k-th most frequent of ``cardinality`` ids) ∝ k^-exponent."""

    name: str
    """Column name."""
    cardinality: int = Field(ge=1, le=2**40)
    """Number of different ids."""
    exponent: float = Field(default=1.05, ge=0, le=2)
    """Zipf exponent; 0 is uniform, about 1 is typical of popular items."""
    style: IdStyle = "integer"
    """How an id is written: 0 … cardinality - 1, not ordered by frequency; NAME_17; or 8 hexadecimal digits."""
    missing: float = Field(default=0.0, ge=0, lt=1)
    """Share of empty cells."""
    kinds: int | None = Field(default=None, ge=1)
    """Number of kinds of ids: those of a kind have alike effects, which a model could learn together. null: every id
    has effects of its own."""
    own: float = Field(default=0.1, ge=0, le=1)
    """How far the effects of an id are its own rather than those of its kind: the share of their variance, with
    ``kinds``."""


class ManyColumn(Config):
    """Several ids per row, each drawn as in a categorical column: a bag or a sequence."""

    name: str
    """Column name."""
    cardinality: int = Field(ge=1, le=2**40)
    """Number of different ids."""
    exponent: float = Field(default=1.05, ge=0, le=2)
    """Zipf exponent."""
    style: IdStyle = "integer"
    """How an id is written."""
    shortest: int = Field(default=0, ge=0)
    """Fewest ids in a row; 0 leaves some cells empty."""
    longest: int = Field(default=8, ge=1)
    """Most ids in a row; lengths are uniform between ``shortest`` and ``longest``."""
    ids_of: str | None = None
    """A categorical column whose ids and planted effects are used, as a history uses those of the item."""
    delimiter: str = "|"
    """Separates the ids of a cell in CSV; Parquet and JSON lines hold lists."""


class LabelColumn(Config):
    """A 0/1 label drawn from ``sigmoid(bias + planted effects)``."""

    name: str
    """Column name."""
    rate: float = Field(default=0.25, gt=0, lt=1)
    """Expected share of ones; determines the bias."""
    first_order: float = Field(default=0.7, ge=0)
    """Weight of the effects of single features on the logit."""
    second_order: float = Field(default=1.0, ge=0)
    """Weight of the planted pairs."""
    third_order: float = Field(default=0.0, ge=0)
    """Weight of the planted triples."""
    high_order: float = Field(default=0.0, ge=0)
    """Weight of the planted products and likenesses, which have four or more columns."""


class GeneratorConfig(Config):
    """A generated log of any size. A shorter log is the beginning of a longer one with the same config."""

    rows: int = Field(ge=1)
    """Number of rows."""
    seed: int = Field(default=0, ge=0)
    """Random seed; equal seeds give equal bytes."""
    labels: tuple[LabelColumn, ...] = Field(min_length=1)
    """Label columns; they come first in each row."""
    numeric: tuple[NumericColumn, ...] = ()
    """Numeric columns."""
    categorical: tuple[CategoricalColumn, ...] = ()
    """Categorical columns."""
    many: tuple[ManyColumn, ...] = ()
    """Bags and sequences."""
    pairs: tuple[tuple[str, str], ...] = ()
    """Pairs of columns whose latent vectors interact."""
    triples: tuple[tuple[str, str, str], ...] = ()
    """Triples of columns that interact."""
    products: tuple[tuple[str, ...], ...] = ()
    """Groups of four or more columns that interact: the directions of their latent vectors are multiplied."""
    likenesses: tuple[tuple[str, ...], ...] = ()
    """Groups of an even number of at least four columns, taken in pairs; the pairs' similarities are multiplied."""
    time: str | None = None
    """Name of a column of non-decreasing Unix seconds."""
    rows_per_second: float = Field(default=2.0, gt=0)
    """Number of rows per second of log time."""
    format: Literal["csv", "parquet", "jsonl"] = "csv"
    """File format."""
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    """The separator between the cells of a CSV row."""
    header: bool = True
    """Whether CSV begins with a line of column names."""

    @property
    def features(self) -> tuple[NumericColumn | CategoricalColumn | ManyColumn, ...]:
        return (*self.numeric, *self.categorical, *self.many)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The columns of every planted interaction."""
        return (*self.pairs, *self.triples, *self.products, *self.likenesses)

    @model_validator(mode="after")
    def _names_are_known_and_unique(self) -> GeneratorConfig:
        features = {column.name for column in self.features}
        names = [*(column.name for column in (*self.labels, *self.features)), *([self.time] if self.time else [])]
        if repeated := duplicates(names):
            raise ValueError(f"two columns have the name {repeated[0]!r}")
        for name in (name for group in self.groups for name in group):
            if name not in features:
                raise ValueError(f"pairs, triples, products and likenesses name {name!r}, which is no feature column")
        for group in self.products:
            if len(group) < 4:
                raise ValueError(
                    f"products holds {list(group)}: give four columns or more; fewer are pairs and triples"
                )
        for group in self.likenesses:
            if len(group) < 4 or len(group) % 2:
                raise ValueError(f"likenesses holds {list(group)}: give four columns, six or more; twos are pairs")
        categories = {column.name: column for column in self.categorical}
        for column in self.many:
            if column.shortest > column.longest:
                raise ValueError(f"{column.name}: shortest {column.shortest} is above longest {column.longest}")
            if column.ids_of is not None and column.ids_of not in categories:
                raise ValueError(f"{column.name}: ids_of names {column.ids_of!r}, which is no categorical column")
        hexadecimal = [c for c in (*self.categorical, *self.many) if c.style == "hex" and c.cardinality > 2**32]
        if hexadecimal:
            raise ValueError(f"{hexadecimal[0].name}: 8 hexadecimal digits write at most 2^32 ids")
        return self
