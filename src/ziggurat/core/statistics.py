"""Statistics of a dataset's training rows, which preparation collects and planners read.

They are saved as ``statistics.json`` (figures, sealed, with the checksum of the other file) and
``statistics.safetensors`` (access counts, one int64 array per table). All figures describe the training split, after
truncation of bags and sequences; label rates are given for every split.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from ziggurat.core.digests import FileChecksum, load_tensors
from ziggurat.core.errors import DataError
from ziggurat.core.files import atomic_file, write_json
from ziggurat.core.sealed import SEAL, declared, sealed, unsealed
from ziggurat.core.untrusted import Damage, array, read_json_object

STATISTICS_VERSION = 2
_READABLE_VERSIONS = (1, 2)
"""Version 1 has no checksums."""
_JSON, _ARRAYS = "statistics.json", "statistics.safetensors"
_DAMAGED = Damage(DataError, "delete the prepared folder and run `ziggurat prepare` again")

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
class OwnIds:
    """How many training rows have their own id of a single-valued feature in their bag or sequence: a likely leak.

    Attributes:
        rows: training rows whose list is not empty.
        own: those of them whose list holds the row's own id.
        chance: the share of rows of which that is expected if ids and lists are unrelated; an upper bound.
        by_label: label -> [rows, own] of the rows with 0, then of those with 1.
    """

    rows: int
    own: int
    chance: float
    by_label: dict[str, list[list[int]]]


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
        own_ids: of a bag or sequence, for each single-valued feature of the same table, how often it holds the row's
            own id; empty for other features, and for data that an earlier ziggurat prepared.
        tells: the binary labels that follow from this feature alone in every training row: a likely leak.
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
    own_ids: dict[str, OwnIds] = field(default_factory=dict[str, OwnIds])
    tells: tuple[str, ...] = ()


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

    def save(self, folder: Path) -> str:
        """Writes ``statistics.safetensors``, then ``statistics.json``; returns the checksum of both."""
        with atomic_file(folder / _ARRAYS) as temporary:
            save_file({name: table.accesses for name, table in self.tables.items()}, temporary)
        values = sealed(
            {
                "version": STATISTICS_VERSION,
                "rows": self.rows,
                "label_rates": _finite(self.label_rates),
                "features": {name: _finite(asdict(feature)) for name, feature in self.features.items()},
                "tables": {name: {"rows": table.rows} for name, table in self.tables.items()},
                "accesses": asdict(FileChecksum.of(folder / _ARRAYS, _DAMAGED)),
            }
        )
        write_json(folder / _JSON, values)
        return values[SEAL]

    @classmethod
    def load(cls, folder: Path, checksum: str | None = None) -> DatasetStatistics:
        """Reads the statistics that :meth:`save` wrote.

        Args:
            folder: folder of the dataset.
            checksum: what :meth:`save` returned, if that was recorded.

        Raises:
            DataError: they are missing, damaged, of another dataset, or of a version that this ziggurat does not know.
        """
        path = folder / _JSON
        try:
            stored = _read(path, checksum)
            limit = sum(8 * table.rows for table in stored.tables.values()) + _HEADER_BYTES
            accesses = load_tensors(folder / _ARRAYS, stored.accesses, _DAMAGED, limit=limit)
        except FileNotFoundError as error:
            raise _DAMAGED.of(error.filename or folder, "no statistics") from None
        tables: dict[str, TableStatistics] = {}
        for name, table in stored.tables.items():
            counts = array(accesses, name, np.int64, 1, folder / _ARRAYS, _DAMAGED)
            if len(counts) != table.rows:
                raise _DAMAGED.of(folder / _ARRAYS, f"has {len(counts)} rows of table {name!r}, not {table.rows}")
            tables[name] = TableStatistics(name, table.rows, counts)
        rates = {
            label: {split: _nan_for_none(rate) for split, rate in rates.items()}
            for label, rates in stored.label_rates.items()
        }
        return cls(stored.rows, rates, {name: item.feature() for name, item in stored.features.items()}, tables)


def has_statistics(folder: Path) -> bool:
    """Returns whether a dataset has statistics. One that readers encode from raw logs on demand has none."""
    return (folder / _JSON).is_file()


def load_features(folder: Path) -> dict[str, FeatureStatistics]:
    """Reads the statistics of the features alone, without the access counts of the tables, which may be large.

    Raises:
        DataError: as :meth:`DatasetStatistics.load`.
    """
    try:
        stored = _read(folder / _JSON, None)
    except FileNotFoundError:
        raise _DAMAGED.of(folder / _JSON, "no statistics") from None
    return {name: item.feature() for name, item in stored.features.items()}


_HEADER_BYTES = 2**27
"""Room for the header of a safetensors file, in the limit on files without a checksum."""


@dataclass(frozen=True, slots=True)
class _StoredNumeric:
    count: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    zeros: int
    non_zero_share: float | None
    quantiles: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class _StoredFeature:
    name: str
    kind: FeatureKind
    table: str | None
    coverage: float
    missing_share: float
    mean_pooling: float
    max_pooling: int
    unknown_share: float
    numeric: _StoredNumeric | None
    own_ids: dict[str, OwnIds] = field(default_factory=dict[str, OwnIds])
    tells: tuple[str, ...] = ()

    def feature(self) -> FeatureStatistics:
        values = {name: getattr(self, name) for name in self.__slots__}
        if self.numeric is not None:
            figures: dict[str, Any] = {
                name: _nan_for_none(getattr(self.numeric, name))
                for name in self.numeric.__slots__
                if name != "quantiles"
            }
            quantiles = {probability: _nan_for_none(value) for probability, value in self.numeric.quantiles.items()}
            values["numeric"] = NumericStatistics(**figures, quantiles=quantiles)
        return FeatureStatistics(**values)


@dataclass(frozen=True, slots=True)
class _StoredTable:
    rows: int


@dataclass(frozen=True, slots=True)
class _Stored:
    """The content of ``statistics.json``."""

    rows: dict[str, int]
    label_rates: dict[str, dict[str, float | None]]
    features: dict[str, _StoredFeature]
    tables: dict[str, _StoredTable]
    accesses: FileChecksum | None = None


def _read(path: Path, checksum: str | None) -> _Stored:
    """Reads ``statistics.json``.

    Raises:
        DataError: it is damaged, or not the file that ``checksum`` was recorded for.
        FileNotFoundError: there is none.
    """
    values = read_json_object(path, _DAMAGED)
    version = values.get("version")
    if version not in _READABLE_VERSIONS:
        raise _DAMAGED.of(path, f"statistics version {version!r}, this ziggurat reads {STATISTICS_VERSION}")
    has_checksums = version != 1 or checksum is not None
    stored = declared(_Stored, unsealed(values, path, _DAMAGED, required=has_checksums), path, _DAMAGED)
    if has_checksums and stored.accesses is None:
        raise _DAMAGED.of(path, f"has no checksum of {_ARRAYS}")
    if checksum is not None and values[SEAL] != checksum:
        raise _DAMAGED.of(path, "belongs to another dataset: the manifest has another checksum for it")
    if any(table.rows < 0 for table in stored.tables.values()):
        raise _DAMAGED.of(path, "has a table with a negative number of rows")
    for name, feature in stored.features.items():
        if feature.table is not None and feature.table not in stored.tables:
            raise _DAMAGED.of(path, f"has no table {feature.table!r}, which feature {name!r} is looked up in")
    return stored


def _finite(value: Any) -> Any:
    """Replaces NaN and infinities by None, at any depth. JSON lacks both; they are read as NaN."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _nan_for_none(value: Any) -> Any:
    return float("nan") if value is None else value
