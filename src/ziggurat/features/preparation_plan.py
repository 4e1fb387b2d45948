"""The plan of a preparation: the configs, and what can be derived from them before any data is read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ziggurat.core.config import established_values
from ziggurat.core.hashing import HASH_VERSION
from ziggurat.core.schema import RawSchema
from ziggurat.data.encoded.manifest import CONTENT_VERSION
from ziggurat.features.config import (
    DataConfig,
    EncodedFeature,
    FeatureConfig,
    IdFeature,
    InputFeature,
    NumericFeature,
    Targets,
)
from ziggurat.features.encoders.category_numbers import CATEGORY_VERSION
from ziggurat.features.encoders.vocabulary import VOCABULARY_VERSION
from ziggurat.features.inputs.categories import CategoryNumber, check_target_labels, encoded_features
from ziggurat.features.inputs.crosses import check_crosses
from ziggurat.features.inputs.of_features import inputs_of
from ziggurat.features.numeric.chain import CHAIN_VERSION
from ziggurat.features.raw_schema import raw_schema
from ziggurat.features.saved_transform import TRANSFORM_FILE, transform_checksum
from ziggurat.features.tables import TableEncoding, resolve_tables

_MAX_THREADS = 8


@dataclass(frozen=True, slots=True)
class Preparation:
    """The plan of a preparation.

    Attributes:
        data: the ``data`` section of the config.
        configured: the features of the config.
        features: the inputs of the model, which time features become several of.
        schema: the raw columns to read.
        tables: the encodings of the id features' tables.
        sources: the fingerprints of the raw files.
        fingerprint: fingerprint of configs, raw files and format versions; preparations with the same one are equal.
        kept: table -> the checksum of the transform that its encoder continues.
        threads: number of threads besides the reader.
    """

    data: DataConfig
    configured: tuple[FeatureConfig, ...]
    features: tuple[InputFeature, ...]
    schema: RawSchema
    tables: dict[str, TableEncoding]
    sources: tuple[str, ...]
    fingerprint: str
    kept: dict[str, str]
    threads: int

    @classmethod
    def plan(
        cls,
        data: DataConfig,
        features: Sequence[FeatureConfig],
        sources: Sequence[str],
        kept: Mapping[str, str] | None = None,
    ) -> Preparation:
        """Checks the configs and returns the plan.

        Args:
            data: the ``data`` section of the config.
            features: the features of the config.
            sources: the fingerprints of the raw files.
            kept: what :attr:`kept` was when the dataset was prepared, for transforms that are gone since then.

        Raises:
            ConfigError: features contradict each other.
            DataError: a transform that an encoder continues is not there, or damaged.
        """
        tables = resolve_tables(features)
        found = kept_checksums(tables, kept or {})
        check_target_labels(features, data)
        check_crosses(features, data)
        return cls(
            data=data,
            configured=tuple(features),
            features=inputs_of(features),
            schema=raw_schema(data, features),
            tables=tables,
            sources=tuple(sources),
            fingerprint=fingerprint(data, features, sources, tables, found),
            kept=found,
            threads=min(os.cpu_count() or 1, _MAX_THREADS),
        )

    @property
    def targets(self) -> Targets:
        return self.data.targets

    @property
    def number_columns(self) -> list[str]:
        """Raw columns that numeric features read."""
        return list(dict.fromkeys(f.source_column for f in self.features if isinstance(f, NumericFeature)))

    @property
    def staged_numbers(self) -> list[str]:
        """Those of them that are known before anything is fitted."""
        fitted = {feature.source_column for feature in self.features if isinstance(feature, CategoryNumber)}
        return [name for name in self.number_columns if name not in fitted]

    @property
    def encoded_features(self) -> list[EncodedFeature]:
        return encoded_features(self.configured)

    @property
    def id_features(self) -> list[IdFeature]:
        return [feature for feature in self.features if not isinstance(feature, NumericFeature)]

    @property
    def id_columns(self) -> list[str]:
        """Raw columns that id features and encoded ones read."""
        return list(dict.fromkeys(each.source_column for each in (*self.id_features, *self.encoded_features)))


def fingerprint(
    data: DataConfig,
    features: Sequence[FeatureConfig],
    sources: Sequence[str],
    tables: Mapping[str, TableEncoding],
    kept: Mapping[str, str] | None = None,
) -> str:
    """Returns the SHA-256 of everything that determines a prepared dataset; the location of the raw files does not."""
    data = data.model_copy(update={"labels": data.targets.as_prepared.labels})
    content: dict[str, Any] = {
        "versions": [CONTENT_VERSION, HASH_VERSION, VOCABULARY_VERSION, CHAIN_VERSION],
        "data": {key: value for key, value in established_values(data).items() if key != "folder"},
        "features": [dataset_settings(feature) for feature in features],
        "sources": list(sources),
    }
    if encoded_features(features):
        content["versions"].append(CATEGORY_VERSION)
    newer = {table.encoder.title: table.encoder.version for table in tables.values() if table.encoder.version > 1}
    if newer:  # version 1 is left out: such datasets may be older than the encoders' own versions
        content["encoders"] = newer
    if kept:
        content["kept"] = dict(kept)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def kept_checksums(tables: Mapping[str, TableEncoding], recorded: Mapping[str, str]) -> dict[str, str]:
    """Returns table -> the checksum of the transform that its encoder continues, of the tables that continue one.

    Args:
        tables: the encodings.
        recorded: these checksums as they were recorded, which count for transforms that are not there any more.

    Raises:
        DataError: a transform is not there and not recorded, or damaged.
    """
    found: dict[str, str] = {}
    for name, table in tables.items():
        if table.encoder.kept_from is None:
            continue
        folder = Path(table.encoder.kept_from) / "encoders"
        gone = name in recorded and not os.path.lexists(folder / TRANSFORM_FILE)
        found[name] = recorded[name] if gone else transform_checksum(folder)
    return found


def dataset_settings(feature: FeatureConfig) -> dict[str, Any]:
    """Returns the settings of a feature that affect the dataset.

    Settings of a sequence encoder do not affect it.
    """
    values = established_values(feature)
    return {**values, "pooling": "mean"} if isinstance(values.get("pooling"), dict) else values
