"""Pass 2 of preparation: fits the encoder of one table on the training rows of its features' staged columns.

Only the columns of the table are in memory: codes are counted part by part, the distinct values of all parts are merged
once, and the values of every part are mapped to ids. The last pass then needs no lookups: it selects ids by code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.errors import ConfigError
from ziggurat.core.hashing import hash_array
from ziggurat.core.statistics import FeatureStatistics, TableStatistics
from ziggurat.data.encoded.split import TRAIN, Assignment
from ziggurat.features.assemble import ids_by_code, truncate
from ziggurat.features.columns import Codes
from ziggurat.features.config import CategoricalFeature, IdFeature
from ziggurat.features.encoders.checks import (
    checked_ids,
    checked_rows,
    checked_unknown_rows,
    encode_values,
    encoder_label,
    fitted_encoder,
)
from ziggurat.features.encoders.compressed.mapped import MappedEncoder
from ziggurat.features.encoders.encoder import MISSING_ROW, Encoder, Ids, ProxyVectors, ValueCounts
from ziggurat.features.encoders.files import save_checked
from ziggurat.features.encoders.round_trip import RoundTripSample
from ziggurat.features.preparation.distinct_values import merge_values, value_kind
from ziggurat.features.preparation.parts import IdFile, IdWriter, StagedParts
from ziggurat.features.preparation.proxy.learned import Learned, values_digest
from ziggurat.features.saved_transform import SavedTransform
from ziggurat.features.tables import TableEncoding, resolve_tables

PartCounts = npt.NDArray[np.int32]
"""Counts within a part, which has far fewer than 2^31 values; int32 because many are in memory at once."""


@dataclass(frozen=True, slots=True)
class FittedTable:
    """The statistics of a fitted table and its features; the encoder itself is on disk, because it may be large.

    Attributes:
        table: statistics of the table.
        features: statistics of its features.
        id_files: for each raw column of these, the file of the ids of its values.
        drift: of a table whose encoder continues an earlier one, what changed.
    """

    table: TableStatistics
    features: dict[str, FeatureStatistics]
    id_files: dict[str, IdFile]
    drift: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One feature's distinct values in one part, with their counts in training rows and in the rows of other splits."""

    feature: IdFeature
    values: pa.Array
    training: PartCounts
    held_out: PartCounts


@dataclass(slots=True)
class _Pooling:
    """Counts of a feature's lookups over all parts: in training rows, then in the rows of other splits.

    Attributes:
        rows: training rows.
        covered: training rows with at least one id.
        missing: training rows whose cell is missing.
        lookups: ids in training rows.
        longest: largest number of ids in a training row.
        held_out: ids in the rows of other splits.
        unknown: ids of these that did not occur in training.
        codes: the most ids of a value.
    """

    rows: int = 0
    covered: int = 0
    missing: int = 0
    lookups: int = 0
    longest: int = 0
    held_out: int = 0
    unknown: int = 0
    codes: int = 1

    def add_held_out(self, chunk: _Chunk, ids: Ids, unknown_rows: range) -> None:
        self.held_out += int(chunk.held_out.sum())
        if len(unknown_rows):
            unknown = (ids >= unknown_rows.start) & (ids < unknown_rows.stop)
            self.unknown += int(chunk.held_out[unknown if ids.ndim == 1 else unknown.any(axis=1)].sum())

    def spread_over_codes(self, chunk: _Chunk, ids: Ids) -> None:
        """Counts the further rows of values that look up several."""
        codes = (ids >= 0).sum(axis=1)
        self.lookups += int(((codes - 1) * chunk.training).sum())
        self.codes = max(self.codes, ids.shape[1])

    def statistics(self, feature: IdFeature) -> FeatureStatistics:
        return FeatureStatistics(
            name=feature.name,
            kind=feature.kind,
            table=feature.table_name,
            coverage=self.covered / self.rows,
            missing_share=self.missing / self.rows,
            mean_pooling=self.lookups / self.covered if self.covered else 0.0,
            max_pooling=self.longest * self.codes,
            unknown_share=self.unknown / self.held_out if self.held_out else 0.0,
        )


def fit_table(
    encoding: TableEncoding,
    parts: StagedParts,
    assignments: Sequence[Assignment],
    id_files: Mapping[str, Path],
    encoders: Path,
    *,
    in_use: bool,
    proxy: Learned | None = None,
) -> FittedTable:
    """Fits a table's encoder, saves it, and writes the ids of every part's values.

    Args:
        encoding: the encoding of the table.
        parts: the staged parts.
        assignments: the split of each row, for each part.
        id_files: for each raw column, the file to write with :class:`~ziggurat.features.preparation.parts.IdWriter`.
        encoders: folder to save the encoder in.
        in_use: whether other processes write to that folder too; if not, the caller ends with ``sync_folder``.
        proxy: what the proxy learned that the encoder asks for.

    Raises:
        FeatureError: the encoder gives no usable ids, or its saved state does not restore it.
        PartFailed: an encoder from outside the package raised an exception of its own.
    """
    chunks: list[_Chunk] = []
    poolings: dict[str, _Pooling] = {}
    missing_lookups = 0
    for feature in encoding.features:
        poolings[feature.name] = _Pooling()
        for part, assignment in enumerate(assignments):
            codes = truncate(feature, parts.codes(part, feature.source_column))
            values = parts.values(part, feature.source_column)
            training, held_out = _count(codes, assignment, len(values))
            missing_lookups += int(training[-1])
            chunks.append(_Chunk(feature, values, training[:-1], held_out[:-1]))
            _count_pooling(poolings[feature.name], feature, codes, assignment == TRAIN, len(values))
    where = encoder_label(encoding.name, encoding.encoder)
    encoder, ids = _encode(encoding, chunks, where, proxy)
    rows = checked_rows(encoder, where)
    unknown_rows = checked_unknown_rows(encoder, rows, where)
    accesses = np.zeros(rows, np.int64)
    if missing_lookups:  # an identity table has no row for missing values, and no missing values
        accesses[MISSING_ROW] += missing_lookups
    owners = {feature.source_column: feature for feature in reversed(encoding.features)}
    writers = {column: IdWriter(path) for column, path in id_files.items()}
    sample = RoundTripSample(sum(len(chunk.values) for chunk in chunks))
    for chunk, chunk_ids in zip(chunks, ids, strict=True):
        sample.add(chunk.values, chunk_ids)
        _count_accesses(accesses, chunk_ids, chunk.training)
        if chunk_ids.ndim == 2:
            poolings[chunk.feature.name].spread_over_codes(chunk, chunk_ids)
        poolings[chunk.feature.name].add_held_out(chunk, chunk_ids, unknown_rows)
        column = chunk.feature.source_column
        if owners[column] is chunk.feature:
            writers[column].append(ids_by_code(chunk_ids, rows))
    written = {column: writer.close() for column, writer in writers.items()}
    statistics = {feature.name: poolings[feature.name].statistics(feature) for feature in encoding.features}
    del chunks, ids  # so that the restored encoder adds nothing to the most memory in use
    known = sample.values(value_kind(encoding.type))
    save_checked(encoders, encoding.name, encoding.encoder, encoder, known, sample.ids(), in_use=in_use)
    drift = encoder.drift if isinstance(encoder, MappedEncoder) else {}
    return FittedTable(TableStatistics(encoding.name, rows, accesses), statistics, written, drift)


def _count_accesses(accesses: npt.NDArray[np.int64], ids: Ids, counts: PartCounts) -> None:
    if ids.ndim == 1:
        np.add.at(accesses, ids, counts.astype(np.int64))
    else:
        present = ids >= 0
        np.add.at(accesses, ids[present], np.repeat(counts.astype(np.int64), present.sum(axis=1)))


def _count(codes: Codes, assignment: Assignment, values: int) -> tuple[PartCounts, PartCounts]:
    """Counts each code, that of a missing value last, in training rows and in other rows."""
    in_all = np.bincount(codes.codes, minlength=values + 1).astype(np.int32)
    training_rows = assignment == TRAIN
    if training_rows.all():
        return in_all, np.zeros_like(in_all)
    chosen = training_rows if codes.offsets is None else np.repeat(training_rows, codes.lengths)
    training = np.bincount(codes.codes[chosen], minlength=values + 1).astype(np.int32)
    return training, in_all - training


def _count_pooling(
    pooling: _Pooling, feature: IdFeature, codes: Codes, training_rows: npt.NDArray[np.bool_], missing_code: int
) -> None:
    """Adds the training rows of a part to ``pooling``."""
    rows = int(np.count_nonzero(training_rows))
    pooling.rows += rows
    if isinstance(feature, CategoricalFeature):
        missing = int(np.count_nonzero((codes.codes == missing_code) & training_rows))
        pooling.covered += rows - missing
        pooling.lookups += rows - missing
        pooling.longest = max(pooling.longest, int(rows > 0))
    else:
        lengths = codes.lengths[training_rows]
        missing = 0 if codes.missing is None else int(np.count_nonzero(codes.missing & training_rows))
        pooling.covered += int(np.count_nonzero(lengths))
        pooling.lookups += int(lengths.sum())
        pooling.longest = max(pooling.longest, int(lengths.max(initial=0)))
    pooling.missing += missing


def _encode(
    encoding: TableEncoding, chunks: Sequence[_Chunk], where: str, proxy: Learned | None
) -> tuple[Encoder, Iterator[Ids]]:
    """Returns the fitted encoder, and an iterator over the ids of each chunk's values."""
    config = encoding.encoder
    if not config.counts_values:
        encoder, _ = fitted_encoder(config, None, where)
        rows = checked_rows(encoder, where)
        return encoder, (encode_values(encoder, chunk.values, rows, config, where) for chunk in chunks)
    merged, codes = merge_values([chunk.values for chunk in chunks], encoding.type)
    counts = np.zeros(len(merged), np.int64)
    for chunk, chunk_codes in zip(chunks, codes, strict=True):
        counts[chunk_codes] += chunk.training  # the values of a chunk are distinct
    vectors = previous = None
    if proxy is not None:
        vectors = ProxyVectors(proxy.vectors(encoding.name, values_digest(hash_array(merged))))
        previous = _previous(encoding)
    encoder, found = fitted_encoder(config, ValueCounts(merged, counts), where, vectors, previous)
    rows = checked_rows(encoder, where)
    ids = (
        encode_values(encoder, merged, rows, config, where)
        if found is None
        else checked_ids(found, merged, rows, where)
    )
    return encoder, (ids[chunk_codes] for chunk_codes in codes)


def _previous(encoding: TableEncoding) -> Encoder | None:
    """Returns the encoder of the same table that this one continues.

    Raises:
        ConfigError: its folder has none, or one of ids of another type.
        DataError: the folder has no transform, or a damaged one.
    """
    if encoding.encoder.kept_from is None:
        return None
    saved = SavedTransform.open(Path(encoding.encoder.kept_from) / "encoders")
    if encoding.name not in saved.tables():
        raise ConfigError(
            f"table {encoding.name!r}: keep: {saved.folder} has no encoder of this table",
            f"it has {', '.join(saved.tables())}; name the run or prepared data of an earlier fit of the same config",
        )
    type_there = resolve_tables(saved.features)[encoding.name].type
    if type_there is not encoding.type:
        raise ConfigError(
            f"table {encoding.name!r}: keep: its ids are {type_there} in {saved.folder}, {encoding.type} here",
            "give its features the same type as there, or leave keep out",
        )
    return saved.encoder(encoding.name)
