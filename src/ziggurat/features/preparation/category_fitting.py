"""Pass 2 of preparation: fits the maps of encoded features, and makes their numbers of staged parts.

The maps are fitted before the numeric features, as chains are fitted on their numbers. It happens in the calling
process, also on a cluster: only the codes of their columns and one label are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError
from ziggurat.core.progress import Progress
from ziggurat.core.schema import WEIGHT_COLUMN, count_column, label_column
from ziggurat.data.encoded.split import TRAIN, Assignment
from ziggurat.features.config import EncodedFeature, LabelConfig
from ziggurat.features.encoders.category_files import save_category
from ziggurat.features.encoders.category_numbers import CategoryMap, TargetEncoding
from ziggurat.features.encoders.encoder import MISSING_ROW, ValueCounts
from ziggurat.features.encoders.hashed import HashEncoder
from ziggurat.features.encoders.target_means import TargetCounts
from ziggurat.features.encoders.vocabulary import VocabularyConfig, VocabularyEncoder
from ziggurat.features.inputs.categories import CategoryNumber, target_label, training_folds
from ziggurat.features.preparation.distinct_values import merge_values
from ziggurat.features.preparation.parts import PLACE_COLUMN, IdFile, IdWriter, StagedParts
from ziggurat.features.preparation_plan import Preparation


@dataclass(frozen=True, slots=True)
class FittedCategories:
    """The fitted maps of encoded features.

    Attributes:
        maps: the map of each.
        rows: for each, the file of the rows that its encoder gives to the values of each part.
        figures: for each, what ``transform.json`` says of it; the rest is saved already.
    """

    maps: dict[str, CategoryMap]
    rows: dict[str, IdFile]
    figures: dict[str, dict[str, Any]]


def fit_categories(
    plan: Preparation,
    parts: StagedParts,
    assignments: Sequence[Assignment],
    staging: Path,
    encoders: Path,
    progress: Progress,
) -> FittedCategories:
    """Fits the map of every encoded feature on the training rows, and saves it in ``encoders``.

    Raises:
        DataError: all training rows are in one fold of a target encoding.
    """
    found = FittedCategories({}, {}, {})
    if not plan.encoded_features:
        return found
    progress.start("fit", len(plan.encoded_features), "encoded features")
    for number, feature in enumerate(plan.encoded_features):
        work = _Feature(plan, feature, parts, assignments)
        fitted, found.rows[feature.name] = work.fit(staging / f"encoded.{number:05d}.arrow")
        found.maps[feature.name] = fitted
        found.figures[feature.name] = save_category(encoders, feature.name, fitted)
        progress.advance(number + 1)
    progress.finish(f"{len(plan.encoded_features)} encoded features")
    return found


@dataclass(frozen=True, slots=True)
class _Feature:
    """An encoded feature with the rows that it is fitted on."""

    plan: Preparation
    feature: EncodedFeature
    parts: StagedParts
    assignments: Sequence[Assignment]

    def fit(self, path: Path) -> tuple[CategoryMap, IdFile]:
        """Returns the fitted map, and the file of the rows of each part's values, written to ``path``."""
        encoder, missing_row, by_part = self._encoder()
        writer = IdWriter(path)
        for values in by_part:
            writer.append(np.append(values, missing_row).astype(np.int64))
        rows = writer.close()
        encoding = self.feature.encoding
        target = self._count(encoding, encoder.rows, rows) if isinstance(encoding, TargetEncoding) else None
        return CategoryMap.fit(encoding, encoder, missing_row, target), rows

    def _encoder(self) -> tuple[VocabularyEncoder | HashEncoder, int, Iterator[npt.NDArray[np.int64]]]:
        """Returns the encoder of ids, the row of a missing one, and the rows of each part's values."""
        config, column = self.feature.encoding.ids, self.feature.source_column
        if not isinstance(config, VocabularyConfig):
            hashed = config.fit(None)
            return hashed, MISSING_ROW, (hashed.transform(each) for each in self._values())
        merged, codes = merge_values(list(self._values()), self.feature.value_type)
        counts = np.zeros(len(merged), np.int64)
        for part, (assignment, part_codes) in enumerate(zip(self.assignments, codes, strict=True)):
            staged = self.parts.codes(part, column).codes[assignment == TRAIN]
            counts[part_codes] += np.bincount(staged, minlength=len(part_codes) + 1)[:-1]
        encoder, ids = config.fit_with_ids(ValueCounts(merged, counts))
        frequent = self.feature.missing == "most_frequent" and len(encoder.keys) > 0
        missing_row = 1 + encoder.oov_rows if frequent else MISSING_ROW
        return encoder, missing_row, (ids[part_codes] for part_codes in codes)

    def _values(self) -> Iterator[Any]:
        return (self.parts.values(part, self.feature.source_column) for part in range(len(self.parts)))

    def _count(self, encoding: TargetEncoding, categories: int, rows: IdFile) -> TargetCounts:
        """Counts the training rows by fold and row of the encoder."""
        label = target_label(self.feature, self.plan.targets.labels)
        counts = TargetCounts.empty(encoding.folds, categories)
        for part, assignment in enumerate(self.assignments):
            training = np.flatnonzero(assignment == TRAIN)
            folds_B = training_folds(self.feature, places(self.plan, self.parts, part)[training])
            assert folds_B is not None
            codes_B = self.parts.codes(part, self.feature.source_column).codes[training]
            categories_B = rows.read(part)[codes_B].astype(np.int64)
            labels_B = self.parts.target(part, label_column(label.name))[training].astype(np.float64)
            counts.add(folds_B, categories_B, labels_B, self._weights(label, part, training))
        if np.count_nonzero(counts.weights_KR.sum(axis=1)) < 2:
            raise DataError(
                f"feature {self.feature.name!r}: all training rows with a weight are in one of {encoding.folds} folds, "
                "so that no other rows are left to take a mean of",
                "give more training rows, or choose another encoding",
            )
        return counts

    def _weights(self, label: LabelConfig, part: int, training: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        weights_B = np.ones(len(training))
        if self.plan.targets.weight is not None:
            weights_B = weights_B * self.parts.target(part, WEIGHT_COLUMN)[training]
        if label.trials is not None:
            weights_B = weights_B * self.parts.target(part, count_column(label.name))[training]
        return weights_B


def places(plan: Preparation, parts: StagedParts, part: int) -> npt.NDArray[np.int64]:
    """Returns the places of a part's rows in the log.

    A sampled negative has that of its positive. A user has as many negatives as positives ask for, so that the rest of
    such a group, in other folds, would tell each of its rows the label.
    """
    if plan.data.negatives is not None:
        return parts.target(part, PLACE_COLUMN)
    return int(parts.starts[part]) + np.arange(parts.rows[part])


class PartsWithCategories(StagedParts):
    """Staged parts that also have the numbers of encoded features, which training rows get from other folds."""

    def __init__(
        self, parts: StagedParts, plan: Preparation, assignments: Sequence[Assignment], fitted: FittedCategories
    ) -> None:
        self._files, self.rows = parts._files, parts.rows
        self._plan, self._assignments, self._fitted = plan, assignments, fitted
        self._categories: Mapping[str, CategoryNumber] = {
            each.source_column: each for each in plan.features if isinstance(each, CategoryNumber)
        }

    def numbers(self, part: int, column: str) -> npt.NDArray[np.float64]:
        """Reads or makes a numeric column, NaN for missing."""
        number = self._categories.get(column)
        if number is None:
            return super().numbers(part, column)
        feature = number.origin
        codes_B = self.codes(part, feature.source_column).codes
        rows_B = self._fitted.rows[feature.name].read(part)[codes_B].astype(np.int64)
        places_B = np.where(self._assignments[part] == TRAIN, places(self._plan, self, part), -1)
        return self._fitted.maps[feature.name].apply(number.index, rows_B, training_folds(feature, places_B))
