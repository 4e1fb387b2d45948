"""Pass 2 of preparation: the encoder of one table, fitted on the training rows of its features' staged columns.

A table is fitted with only its own columns in memory: the codes are counted part by part, the distinct values of all
parts are merged once, and every part's values get their ids. The last pass then looks nothing up: it takes ids by code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.schema import ValueType
from ziggurat.core.statistics import FeatureStatistics, TableStatistics
from ziggurat.data.split import TRAIN, Assignment
from ziggurat.features.assemble import ids_by_code, truncated
from ziggurat.features.columns import Codes
from ziggurat.features.config import CategoricalFeature, IdFeature
from ziggurat.features.encoder import MISSING_ROW, Encoder, Ids, ValueCounts
from ziggurat.features.encoder_files import save_encoder
from ziggurat.features.hashed import HashConfig, HashEncoder
from ziggurat.features.identity import Identity, IdentityConfig
from ziggurat.features.parts import IdFile, Parts
from ziggurat.features.tables import TableEncoding
from ziggurat.features.vocabulary import Vocabulary, VocabularyConfig

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FittedTable:
    """What training does to a table and its features; the encoder itself is on disk, for it may be large."""

    table: TableStatistics
    features: dict[str, FeatureStatistics]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One feature's values in one part: how often training and the other splits look each of them up."""

    feature: IdFeature
    part: int
    values: pa.Array
    training: Counts
    held_out: Counts


@dataclass(slots=True)
class _Pooling:
    """What a feature's training rows look up, counted over parts."""

    rows: int = 0
    covered: int = 0
    missing: int = 0
    lookups: int = 0
    longest: int = 0


def fit_table(
    encoding: TableEncoding,
    parts: Parts,
    assignments: Sequence[Assignment],
    id_files: Mapping[str, Path],
    encoders: Path,
) -> FittedTable:
    """Fit a table's encoder, save it, and write the ids of every part's values.

    Args:
        assignments: the split of each row, by part.
        id_files: raw column -> the :class:`~ziggurat.features.parts.IdFile` to write.
        encoders: the folder to save the encoder in.
    """
    poolings = {feature.name: _Pooling() for feature in encoding.features}
    missing_lookups = 0
    chunks: list[_Chunk] = []
    for feature in encoding.features:
        for part, assignment in enumerate(assignments):
            codes = truncated(feature, parts.codes(part, feature.source_column))
            values = parts.values(part, feature.source_column)
            training, held_out = _count(codes, assignment, len(values))
            missing_lookups += int(training[-1])
            chunks.append(_Chunk(feature, part, values, training[:-1], held_out[:-1]))
            _pool(poolings[feature.name], feature, codes, assignment == TRAIN, len(values))
    encoder, ids = _encode(encoding, chunks)
    save_encoder(encoders, encoding.name, encoder)
    accesses = np.zeros(encoder.rows, np.int64)
    if missing_lookups:  # an identity table has no row for missing values, and no missing values
        accesses[MISSING_ROW] += missing_lookups
    for chunk, chunk_ids in zip(chunks, ids, strict=True):
        np.add.at(accesses, chunk_ids, chunk.training)
    for column, path in id_files.items():
        owner = next(feature for feature in encoding.features if feature.source_column == column)
        IdFile(path).write(
            ids_by_code(chunk_ids, encoder.rows)
            for chunk, chunk_ids in zip(chunks, ids, strict=True)
            if chunk.feature is owner
        )
    statistics = {
        feature.name: _statistics(feature, poolings[feature.name], _unknown_share(feature, encoder, chunks, ids))
        for feature in encoding.features
    }
    return FittedTable(TableStatistics(encoding.name, encoder.rows, accesses), statistics)


def _count(codes: Codes, assignment: Assignment, values: int) -> tuple[Counts, Counts]:
    """Occurrences of each code, the missing one last, in training rows and in the others."""
    everywhere = np.bincount(codes.codes, minlength=values + 1)
    training_rows = assignment == TRAIN
    if training_rows.all():
        return everywhere, np.zeros_like(everywhere)
    chosen = training_rows if codes.offsets is None else np.repeat(training_rows, codes.lengths)
    training = np.bincount(codes.codes[chosen], minlength=values + 1)
    return training, everywhere - training


def _pool(
    pooling: _Pooling, feature: IdFeature, codes: Codes, training_rows: npt.NDArray[np.bool_], missing_code: int
) -> None:
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


def _encode(encoding: TableEncoding, chunks: Sequence[_Chunk]) -> tuple[Encoder, list[Ids]]:
    """The fitted encoder, and the ids of each chunk's values."""
    match encoding.encoder:
        case HashConfig(rows=rows, seed=seed):
            encoder = HashEncoder(rows, seed)
            return encoder, [encoder.transform(chunk.values) for chunk in chunks]
        case IdentityConfig(rows=rows):
            encoder = Identity(rows)
            return encoder, [encoder.transform(chunk.values) for chunk in chunks]
        case VocabularyConfig() as config:
            merged, codes = merge_values([chunk.values for chunk in chunks], encoding.type)
            counts = np.zeros(len(merged), np.int64)
            for chunk, chunk_codes in zip(chunks, codes, strict=True):
                np.add.at(counts, chunk_codes, chunk.training)
            encoder = Vocabulary.fit(config, ValueCounts(merged, counts))
            ids = encoder.transform(merged)
            return encoder, [ids[chunk_codes] for chunk_codes in codes]


def merge_values(arrays: Sequence[pa.Array], value_type: ValueType) -> tuple[pa.Array, list[npt.NDArray[Any]]]:
    """The distinct values of all arrays, and each array as positions among them."""
    kind = pa.int64() if value_type is ValueType.INTEGER else pa.string()
    encoded = pa.chunked_array(arrays, kind).dictionary_encode()
    if encoded.num_chunks == 0:
        return pa.array([], kind), []
    merged = encoded.chunk(encoded.num_chunks - 1).dictionary  # the chunks share one dictionary
    return merged, [chunk.indices.to_numpy() for chunk in encoded.chunks]


def _unknown_share(feature: IdFeature, encoder: Encoder, chunks: Sequence[_Chunk], ids: Sequence[Ids]) -> float:
    unknown, lookups = 0, 0
    known_from, known_to = encoder.unknown_rows.stop, encoder.unknown_rows.start
    for chunk, chunk_ids in zip(chunks, ids, strict=True):
        if chunk.feature is feature:
            lookups += int(chunk.held_out.sum())
            unknown += int(chunk.held_out[(chunk_ids >= known_to) & (chunk_ids < known_from)].sum())
    return unknown / lookups if lookups else 0.0


def _statistics(feature: IdFeature, pooling: _Pooling, unknown_share: float) -> FeatureStatistics:
    return FeatureStatistics(
        name=feature.name,
        kind=feature.kind,
        table=feature.table_name,
        coverage=pooling.covered / pooling.rows,
        missing_share=pooling.missing / pooling.rows,
        mean_pooling=pooling.lookups / pooling.covered if pooling.covered else 0.0,
        max_pooling=pooling.longest,
        unknown_share=unknown_share,
    )
