"""What one run of ``prepare`` is about: the configs, and what follows from them before any data is read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ziggurat.core.hashing import HASH_VERSION
from ziggurat.core.schema import RawSchema
from ziggurat.data.encoded.dataset import FORMAT_VERSION
from ziggurat.features.config import DataConfig, FeatureConfig, IdFeature, NumericFeature, Targets
from ziggurat.features.encoders.vocabulary import VOCABULARY_VERSION
from ziggurat.features.numeric.chain import CHAIN_VERSION
from ziggurat.features.raw_schema import raw_schema
from ziggurat.features.tables import TableEncoding, resolve_tables

_MOST_THREADS = 8


@dataclass(frozen=True, slots=True)
class Preparation:
    """The plan of a preparation.

    Attributes:
        schema: the raw columns to read.
        tables: the encodings of the id features' tables.
        fingerprint: of configs, raw files and format versions; two preparations with the same one are the same.
        threads: workers beside the reader.
    """

    data: DataConfig
    features: tuple[FeatureConfig, ...]
    schema: RawSchema
    tables: dict[str, TableEncoding]
    fingerprint: str
    threads: int

    @classmethod
    def plan(cls, data: DataConfig, features: Sequence[FeatureConfig], sources: Sequence[str]) -> Preparation:
        """Check the configs against each other.

        Args:
            sources: the fingerprints of the raw files.

        Raises:
            ConfigError: features that contradict each other.
        """
        tables = resolve_tables(features)
        return cls(
            data=data,
            features=tuple(features),
            schema=raw_schema(data, features),
            tables=tables,
            fingerprint=fingerprint(data, features, sources, tables),
            threads=min(os.cpu_count() or 1, _MOST_THREADS),
        )

    @property
    def targets(self) -> Targets:
        return self.data.targets

    @property
    def number_columns(self) -> list[str]:
        """Raw columns that numeric features read."""
        return list(dict.fromkeys(f.source_column for f in self.features if isinstance(f, NumericFeature)))

    @property
    def id_features(self) -> list[IdFeature]:
        return [feature for feature in self.features if not isinstance(feature, NumericFeature)]

    @property
    def id_columns(self) -> list[str]:
        """Raw columns that id features read."""
        return list(dict.fromkeys(feature.source_column for feature in self.id_features))


def fingerprint(
    data: DataConfig, features: Sequence[FeatureConfig], sources: Sequence[str], tables: Mapping[str, TableEncoding]
) -> str:
    """SHA-256 over everything that decides what a prepared dataset holds; where its raw files lie does not."""
    content: dict[str, Any] = {
        "versions": [FORMAT_VERSION, HASH_VERSION, VOCABULARY_VERSION, CHAIN_VERSION],
        "data": data.model_dump(mode="json", exclude={"folder"}),
        "features": [what_is_encoded(feature) for feature in features],
        "sources": list(sources),
    }
    newer = {table.encoder.title: table.encoder.version for table in tables.values() if table.encoder.version > 1}
    if newer:  # datasets of first versions were made before encoders had versions of their own
        content["encoders"] = newer
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def what_is_encoded(feature: FeatureConfig) -> dict[str, Any]:
    """A feature's config without the settings of a sequence encoder, of which the dataset knows nothing, and without
    ``brackets`` where there are none, so that datasets made before the key was known still count."""
    values = feature.model_dump(mode="json")
    if not values.get("brackets"):
        values.pop("brackets", None)
    return {**values, "pooling": "mean"} if isinstance(values.get("pooling"), dict) else values
