"""Statistics of a dataset's training rows, which preparation collects and planners read.

They are saved as ``statistics.json`` (figures) and ``statistics.safetensors`` (access counts, one int64 array per
table). All figures describe the training split, after truncation of bags and sequences; label rates are given for every
split.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ziggurat.core.errors import DataError
from ziggurat.core.files import atomic_file, write_json

STATISTICS_VERSION = 1

FeatureKind = Literal["numeric", "categorical", "bag", "sequence"]


@dataclass(frozen=True, slots=True)
class NumericStatistics:
    """Moments and quantiles of a numeric column's raw values, before any transform.

    Attributes:
        count: number of values present. The figures below are exact over them, except the quantiles; NaN without any.
        std: population standard deviation (divides by ``count``).
        zeros: number of values equal to 0.
        non_zero_share: share of all rows whose value is present and not 0.
        quantiles: probability -> value, from a uniform sample of rows; exact if the sample contains all rows.
    """

    count: int
    mean: float
    std: float
    min: float
    max: float
    zeros: int
    non_zero_share: float
    quantiles: dict[str, float]


@dataclass(frozen=True, slots=True)
class FeatureStatistics:
    """Statistics of one feature over the training rows.

    Attributes:
        coverage: share of rows with at least one value (RecShard, arXiv 2201.10095, section 3).
        missing_share: share of rows whose cell is empty. A row with an empty list is neither covered nor missing.
        mean_pooling: mean number of ids looked up per covered row; 0 for dense features.
        max_pooling: the most ids looked up in a row.
        unknown_share: share of the ids in validation and test rows that did not occur in training (out-of-vocabulary);
            0 without such rows, and for encoders that know every value.
        numeric: statistics of a numeric column; None for other features.
    """

    name: str
    kind: FeatureKind
    table: str | None
    coverage: float
    missing_share: float
    mean_pooling: float = 0.0
    max_pooling: int = 0
    unknown_share: float = 0.0
    numeric: NumericStatistics | None = None


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """How often training looks up each row of a table: ``accesses`` is int64, (rows,)."""

    name: str
    rows: int
    accesses: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        assert self.accesses.shape == (self.rows,)
        assert self.accesses.dtype == np.int64


@dataclass(frozen=True, slots=True)
class DatasetStatistics:
    """All statistics of a dataset.

    Attributes:
        rows: split -> number of rows.
        label_rates: label -> split -> share of ones (NaN for a split without rows).
    """

    rows: dict[str, int]
    label_rates: dict[str, dict[str, float]]
    features: dict[str, FeatureStatistics] = field(default_factory=dict[str, FeatureStatistics])
    tables: dict[str, TableStatistics] = field(default_factory=dict[str, TableStatistics])

    def save(self, folder: Path) -> None:
        """Writes ``statistics.safetensors``, then ``statistics.json``."""
        with atomic_file(folder / "statistics.safetensors") as temporary:
            save_file({name: table.accesses for name, table in self.tables.items()}, temporary)
        write_json(
            folder / "statistics.json",
            {
                "version": STATISTICS_VERSION,
                "rows": self.rows,
                "label_rates": _finite(self.label_rates),
                "features": {name: _finite(asdict(feature)) for name, feature in self.features.items()},
                "tables": {name: {"rows": table.rows} for name, table in self.tables.items()},
            },
        )

    @classmethod
    def load(cls, folder: Path) -> DatasetStatistics:
        """Reads the statistics that :meth:`save` wrote.

        Raises:
            DataError: they are missing, damaged, or of a version that this ziggurat does not know.
        """
        path, hint = folder / "statistics.json", "delete the prepared folder and run `ziggurat prepare` again"
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            accesses = load_file(folder / "statistics.safetensors")
        except FileNotFoundError as error:
            raise DataError(f"{error.filename or folder}: no statistics", hint) from None
        except (ValueError, SafetensorError) as error:
            raise DataError(f"{folder}: its statistics are damaged: {error}", hint) from None
        if values["version"] != STATISTICS_VERSION:
            raise DataError(
                f"{path}: statistics version {values['version']!r}, this ziggurat reads {STATISTICS_VERSION}",
                hint,
            )
        return cls(
            rows=values["rows"],
            label_rates={
                label: {split: _nan_for_none(rate) for split, rate in rates.items()}
                for label, rates in values["label_rates"].items()
            },
            features={name: _feature(item) for name, item in values["features"].items()},
            tables={
                name: TableStatistics(name, int(item["rows"]), accesses[name])
                for name, item in values["tables"].items()
            },
        )


def _feature(values: dict[str, Any]) -> FeatureStatistics:
    numeric = values.pop("numeric")
    if numeric is not None:
        quantiles = {probability: _nan_for_none(value) for probability, value in numeric.pop("quantiles").items()}
        numeric = NumericStatistics(
            **{key: _nan_for_none(value) for key, value in numeric.items()}, quantiles=quantiles
        )
    return FeatureStatistics(**values, numeric=numeric)


def _finite(value: Any) -> Any:
    """Replaces NaN and infinities by None, at any depth. JSON lacks both; they are read as NaN."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _nan_for_none(value: Any) -> Any:
    return float("nan") if value is None else value
