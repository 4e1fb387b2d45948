"""Proposes how to make the tables of an experiment smaller by some factor: rows and an encoder for each.

The budget is that of all tables' weights and maps, divided by the ratio. Every table gets a share of it by what a proxy
model of the same rows says about its importance: with N rows, the squared error of logits that sharing rows causes
falls as importance · (look-ups a row) · N to the power -2 / D for D numbers a value, which asks for rows in proportion
to the error to the power D / (D + 2).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import ConfigError
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.manifest import ENCODERS
from ziggurat.embeddings.layout import Layout
from ziggurat.features.config import FeatureConfig
from ziggurat.features.encoders.compressed.clusters import shared_out
from ziggurat.features.encoders.compressed.learned_hash import MIN_COUNT, LearnedHashConfig
from ziggurat.features.encoders.compressed.static_function import StaticFunction
from ziggurat.features.encoders.encoder import EncoderSettings
from ziggurat.features.encoders.files import encoder_file_names
from ziggurat.features.preparation.prepare import open_sources
from ziggurat.features.preparation.prepare import prepare as prepare_dataset
from ziggurat.features.preparation.proxy.training import importance_of_tables
from ziggurat.features.preparation_plan import Preparation
from ziggurat.features.tables import resolve_tables
from ziggurat.training.experiment import Experiment, as_experiment
from ziggurat.training.preparation import prepare

LEAST_BYTES = 1 << 12
"""Tables of fewer bytes are left as they are."""
_LEAST_ROWS = 8
_COMPACT_BITS = 9
"""Of a value in a compact map: seven of its code and two that check it."""
_COMPACT_BYTES = 1.23 * _COMPACT_BITS / 8
"""Bytes a value of a compact map, but for a hundred that each has."""
_MAP_SHARE = 0.4
"""The most of a table's budget that its map may take."""
_PRIVATE_BYTES = 12
_HEAD_LENGTH = 8
"""Bytes of a safetensors file that say how long its head is, which follows."""


@dataclass(frozen=True, slots=True)
class TableProposal:
    """What is proposed for one table.

    Attributes:
        table: its name.
        encoder: the encoder's section; None: as it is.
        why: in a few words.
        rows_before, rows: its rows.
        bytes_before, bytes: bytes of its float32 weights.
        map_before, map_bytes: bytes of its encoder's arrays; those of a proposal are computed, not measured.
        importance: the mean squared change of the logit if all its values shared one row.
        hot_share: the share of look-ups that the most used tenth of the rows has.
    """

    table: str
    encoder: dict[str, Any] | None
    why: str
    rows_before: int
    rows: int
    bytes_before: int
    bytes: int
    map_before: int
    map_bytes: int
    importance: float
    hot_share: float


@dataclass(frozen=True, slots=True)
class Compression:
    """The proposals for all tables.

    Attributes:
        ratio: the factor that was asked for.
        tables: the proposals, in the order of the tables.
    """

    ratio: float
    tables: tuple[TableProposal, ...]

    @property
    def bytes_before(self) -> int:
        """Bytes of weights and maps as they are."""
        return sum(each.bytes_before + each.map_before for each in self.tables)

    @property
    def bytes(self) -> int:
        """Bytes of weights and maps as proposed."""
        return sum(each.bytes + each.map_bytes for each in self.tables)

    def to_json(self) -> dict[str, Any]:
        keys = TableProposal.__slots__
        tables = [{key: getattr(each, key) for key in keys} for each in self.tables]
        return {"ratio": self.ratio, "bytes_before": self.bytes_before, "bytes": self.bytes, "tables": tables}


def propose(
    experiment: Experiment | str | Path,
    ratio: float,
    prepared: str | Path | None = None,
    progress: Progress | None = None,
) -> Compression:
    """Returns a proposal for each table; prepares the data if needed, and trains a proxy unless one is in the cache.

    Args:
        experiment: the config, or its YAML file.
        ratio: by what factor weights and maps together shall be smaller, above 1.
        prepared: folder of the encoded dataset; default as in :func:`~ziggurat.training.api.prepare`.
        progress: where to show progress.

    Raises:
        ConfigError: the ratio is not above 1, no table is large enough to be compressed, or those that are not
            compressed take more than the ratio leaves.
    """
    experiment, progress = as_experiment(experiment), progress or Silent()
    if not ratio > 1:
        raise ConfigError(f"--compress {ratio:g}: is not above 1", "say by what factor tables shall be smaller")
    dataset = prepare(experiment, folder=prepared, progress=progress)
    layout, statistics = experiment.layout(dataset.schema), dataset.statistics()
    encodings = resolve_tables(experiment.features)
    sizes = {spec.name: spec.weight_bytes for spec in layout.tables}
    chosen = [name for name in encodings if sizes.get(name, 0) >= LEAST_BYTES]
    if not chosen:
        raise ConfigError(f"--compress {ratio:g}: no table of ids takes {LEAST_BYTES:,} bytes", "leave --compress out")
    importance = _importance(experiment, dict.fromkeys(chosen, True), progress)
    maps = {name: _map_bytes(dataset, name) for name in sizes}
    return allotted(
        layout, statistics, {name: encodings[name].encoder for name in encodings}, importance, maps, chosen, ratio
    )


def allotted(
    layout: Layout,
    statistics: DatasetStatistics,
    encoders: Mapping[str, EncoderSettings],
    importance: Mapping[str, float],
    maps: Mapping[str, int],
    chosen: list[str],
    ratio: float,
) -> Compression:
    """Shares out the budget among tables.

    Args:
        layout: the tables.
        statistics: how often each row is used.
        encoders: the encoders of tables of ids.
        importance: of each of these tables.
        maps: bytes of the encoders' arrays.
        chosen: the tables that may be compressed.
        ratio: the factor.

    Raises:
        ConfigError: the other tables alone take more than is left by the ratio.
    """
    specs = {spec.name: spec for spec in layout.tables}
    total = sum(spec.weight_bytes + maps[spec.name] for spec in specs.values())
    fixed = sum(specs[name].weight_bytes + maps[name] for name in specs if name not in chosen)
    least = sum(_LEAST_ROWS * 4 * specs[name].dim for name in chosen)
    if fixed > total / ratio:
        others = ", ".join(f"{name} ({_why_kept(name, encoders)})" for name in specs if name not in chosen)
        possible = int(100 * total / (fixed + least)) / 100
        raise ConfigError(
            f"--compress {ratio:g}: tables that are left as they are take {fixed:,} of {total:,} bytes: {others}",
            f"ask for {possible:g} or less, or narrow these tables" if possible > 1 else "leave --compress out",
        )
    budget = max(total / ratio - fixed, float(least))
    numbers = LearnedHashConfig.model_fields["proxy_dim"].default + 1
    lookups = np.array([statistics.tables[name].accesses.sum() / encoders[name].codes for name in chosen], np.float64)
    error = np.array([importance.get(name, 0.0) for name in chosen]) * lookups
    wishes = np.maximum(error, 1e-6 * max(error.max(), 1e-300)) ** (numbers / (numbers + 2))
    most = np.array([specs[name].weight_bytes + maps[name] for name in chosen], np.int64)
    shares = dict(zip(chosen, shared_out(wishes, most, int(budget)).tolist(), strict=True))
    proposals = [
        _proposal(specs[name].dim, name, shares.get(name), statistics, encoders, importance, maps[name])
        for name in specs
    ]
    return Compression(ratio, tuple(proposals))


def _proposal(
    dim: int,
    name: str,
    budget: int | None,
    statistics: DatasetStatistics,
    encoders: Mapping[str, EncoderSettings],
    importance: Mapping[str, float],
    map_before: int,
) -> TableProposal:
    accesses = np.sort(statistics.tables[name].accesses)[::-1]
    before, width = len(accesses), 4 * dim
    hot = float(accesses[: max(1, before // 10)].sum() / max(1, accesses.sum()))

    def made(section: dict[str, Any] | None, why: str, rows: int, map_bytes: int) -> TableProposal:
        figures = importance.get(name, 0.0), hot
        return TableProposal(
            name, section, why, before, rows, before * width, rows * width, map_before, map_bytes, *figures
        )

    if budget is None:
        return made(None, _why_kept(name, encoders), before, map_before)
    if budget >= before * width + map_before:
        return made(None, "its budget holds it whole", before, map_before)
    known, often = (int(np.count_nonzero(accesses >= least)) for least in (1, MIN_COUNT))
    mapped = min(often, int(_MAP_SHARE * budget / _COMPACT_BYTES))
    rows, private = _rows_within(budget, width, StaticFunction.bytes_of(mapped, _COMPACT_BITS), accesses)
    if rows < _LEAST_ROWS:
        rows = max(2, budget // width)
        return made({"name": "hash", "rows": rows}, "no bytes for a map", rows, 0)
    mapped = min(mapped, often - private)
    if mapped < 2:
        rows, private = _rows_within(budget, width, 0, accesses)
        if not private:
            return made({"name": "hash", "rows": rows}, "values occur too rarely to learn what they are like", rows, 0)
        why = f"{private:,} rows of the most used values; the others occur too rarely to learn what they are like"
        hashed = {"name": "frequency_hash", "rows": rows, "private_rows": private}
        return made(hashed, why, rows, private * _PRIVATE_BYTES)
    shared = rows - 1 - private
    unseen = max(1, shared - max(1, mapped // 2))
    # More values than rows are used may occur: those of hashed tables, and rare ones without a row of their own.
    section: dict[str, Any] = {"name": "learned_hash", "rows": rows, "private_rows": private, "unseen_rows": unseen}
    section |= {"map": "compact", "mapped_values": mapped}
    why = f"{private:,} rows of the most used values, {shared - unseen:,} shared by likeness"
    if mapped < known - private:
        why += f"; {known - private - mapped:,} rare values by hash"
    return made(section, why, rows, StaticFunction.bytes_of(mapped, _COMPACT_BITS) + private * _PRIVATE_BYTES)


def _rows_within(budget: int, width: int, in_map: int, accesses: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Returns the rows, and how many of them are private, that have room beside a map of ``in_map`` bytes."""
    rows = int((budget - in_map) / width)
    private = private_rows(accesses, max(0, rows - 2))
    while private and rows * width + in_map + private * _PRIVATE_BYTES > budget:
        rows -= max(1, int((rows * width + in_map + private * _PRIVATE_BYTES - budget) / width))
        private = min(private, max(0, rows - 3))
    return rows, private


def _why_kept(name: str, encoders: Mapping[str, EncoderSettings]) -> str:
    """Returns why a table is not among those that may be compressed."""
    return f"below {LEAST_BYTES:,} bytes" if name in encoders else "buckets of numbers"


def private_rows(accesses: npt.NDArray[np.int64], rows: int) -> int:
    """Returns how many of the most used values get rows of their own: those used more than an average shared row.

    Args:
        accesses: how often each value is used, falling.
        rows: the rows for private and shared values.
    """
    if rows < 2 or not len(accesses):
        return 0
    most = min(rows - 1, len(accesses))
    left = accesses.sum() - np.concatenate([[0], np.cumsum(accesses)])[: most + 1]
    average = left / (rows - np.arange(most + 1))
    above = accesses[:most] > average[:most]
    return int(most if above.all() else np.argmin(above))


def _importance(experiment: Experiment, tables: Mapping[str, bool], progress: Progress) -> dict[str, float]:
    """Returns the importance of tables, from the proxy in the cache, or from a preparation that trains one."""
    settings = LearnedHashConfig(rows=4).proxy
    features = [_learned(feature, tables) for feature in experiment.features]
    sources = open_sources(experiment.data, features)
    plan = Preparation.plan(experiment.data, features, [item.source.fingerprint() for item in sources])
    found = importance_of_tables(plan, settings)
    if found is None:
        folder = Path(tempfile.mkdtemp(prefix="ziggurat-proxy-"))
        try:
            prepare_dataset(experiment.data, features, folder / "rows", progress)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        found = importance_of_tables(plan, settings)
    assert found is not None
    return found


def _learned(feature: FeatureConfig, tables: Mapping[str, bool]) -> FeatureConfig:
    """Returns the feature with an encoder that asks for a proxy, if its table is one of these."""
    name = getattr(feature, "table_name", None)
    if name not in tables or not isinstance(getattr(feature, "encoder", None), EncoderSettings | None):
        return feature
    return feature.model_copy(update={"encoder": LearnedHashConfig(rows=4)})


def _map_bytes(dataset: Dataset, table: str) -> int:
    """Returns the bytes of the arrays of a table's encoder without the head of their file, 0 without any."""
    path = dataset.folder / ENCODERS / encoder_file_names(table)[1]
    if not path.exists():
        return 0
    with path.open("rb") as file:
        head = file.read(_HEAD_LENGTH)
    return path.stat().st_size - _HEAD_LENGTH - int.from_bytes(head, "little")
