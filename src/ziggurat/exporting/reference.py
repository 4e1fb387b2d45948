"""What an export says about its validation split and its training, for the server to compare traffic with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ziggurat.core.batch import Batch
from ziggurat.core.progress import Progress
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.data.encoded.columns import Columns
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.exporting.comparison import split_to_compare
from ziggurat.exporting.exported_model import as_inputs
from ziggurat.features.transform import Transform
from ziggurat.serving.artefact.reference import BINS, IdCounts, NumberRange, Reference, ScoreBins, Training
from ziggurat.serving.drift.unknown_ids import count_unknown, unknown_rows
from ziggurat.serving.model.scorer import Scorer, predictions
from ziggurat.training.run_folder.run import Run
from ziggurat.training.run_folder.run_files import RESULTS_FILE

MOST_ROWS = 100_000
"""Rows that are predicted: the deciles of so many scores are known to a few thousandths of a share."""


def reference_of(
    runs: Sequence[Run], scorer: Scorer, dataset: Dataset, batch_size: int, progress: Progress
) -> Reference:
    """Predicts the validation split with an export, or evenly spaced rows of a large one.

    Args:
        runs: the run that was exported, or those of the members of an ensemble, each once.
        scorer: the export.
        dataset: the encoded dataset.
        batch_size: rows that are predicted at a time.
        progress: where to show progress.
    """
    split = split_to_compare(dataset)
    blocks = dataset.split(split)
    every = math.ceil(blocks.rows / MOST_ROWS)
    unknown = unknown_rows(scorer.transform)
    ids, without = dict.fromkeys(unknown, 0), dict.fromkeys(unknown, 0)
    parts: list[npt.NDArray[np.float32]] = []
    progress.start("predict the validation", blocks.rows, "rows")
    start = 0
    try:
        for number, size in enumerate(blocks.sizes):
            rows = np.arange(-start % every, size, every, dtype=np.int64)
            start += size
            if not len(rows):
                continue
            columns = Columns([blocks.read(number)], dataset.schema, labelled=False)
            for first in range(0, len(rows), batch_size):
                batch = columns.batch(rows[first : first + batch_size])
                inputs = as_inputs(scorer, batch)
                parts.append(predictions(scorer.manifest, scorer.columns(inputs))[0])
                for feature, values in _ids(batch).items():
                    if feature in unknown:
                        ids[feature] += len(values)
                        without[feature] += count_unknown(values, unknown[feature])
            progress.advance(start)
    finally:
        progress.finish()
    scores_BT = np.concatenate(parts)
    found = {task.name: score_bins(scores_BT[:, at]) for at, task in enumerate(scorer.manifest.tasks)}
    return Reference(
        split=split,
        rows=len(scores_BT),
        scores={label: bins for label, bins in found.items() if bins is not None},
        unknown_ids={feature: IdCounts(ids[feature], without[feature]) for feature in unknown},
        numbers=_ranges(scorer.transform, dataset.statistics()),
        training=_training(runs, dataset.statistics()),
    )


def score_bins(scores: npt.NDArray[np.float32]) -> ScoreBins | None:
    """Returns the distribution of some scores over tenths of them; None if none is finite.

    Where many scores are equal, tenths meet, and there are fewer bins.
    """
    values = scores[np.isfinite(scores)].astype(np.float64)
    if not len(values):
        return None
    edges = np.unique(np.quantile(values, np.arange(1, BINS) / BINS))
    counts = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)
    return ScoreBins(tuple(edges.tolist()), tuple(counts.tolist()), float(values.mean()))


def _ids(batch: Batch) -> dict[str, npt.NDArray[np.int64]]:
    found: dict[str, npt.NDArray[np.int64]] = {}
    for part in (batch.bags, batch.sequences):
        if part is not None:
            found |= {name: jagged.values().numpy() for name, jagged in part.to_dict().items()}
    return found


def _ranges(transform: Transform, statistics: DatasetStatistics) -> dict[str, NumberRange]:
    """Returns numeric column -> its values in the training rows."""
    found: dict[str, NumberRange] = {}
    for feature in transform.features:
        first = f"{feature.name}[0]"  # of a spline, whose numbers have the statistics of the column
        each = statistics.features.get(feature.name, statistics.features.get(first))
        if each is None or each.numeric is None or feature.kind != "numeric":
            continue
        numbers = each.numeric
        values = (numbers.min, numbers.quantiles.get("0.5", numbers.mean), numbers.max)
        if all(map(math.isfinite, values)):
            found[feature.source_column] = NumberRange(*map(float, values))
    return found


def _training(runs: Sequence[Run], statistics: DatasetStatistics) -> Training:
    """Returns how the runs were trained, in all."""
    rows, results = dict(statistics.rows), [run.results for run in runs]
    found = [each for each in results if each is not None]
    if len(found) < len(results):
        return Training(None, None, None, rows)
    seconds = [_number(each, "seconds") for each in found]
    finished = max((run.folder / RESULTS_FILE).stat().st_mtime for run in runs)
    took = None if None in seconds else sum(each for each in seconds if each is not None)
    return Training(finished, took, sum(int(each["steps"]) for each in found), rows)


def _number(values: Mapping[str, float], name: str) -> float | None:
    return float(values[name]) if math.isfinite(values[name]) else None
