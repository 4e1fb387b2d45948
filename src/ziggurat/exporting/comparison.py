"""Compares an export with what it was made of: sample rows, and of a rounded one the figures of a split."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ziggurat.core.errors import DataError
from ziggurat.core.progress import Progress
from ziggurat.data.encoded.columns import Columns
from ziggurat.data.encoded.dataset import Dataset, Split
from ziggurat.exporting.exported_model import ExportedModel
from ziggurat.serving.artefact.row_codec import Precision
from ziggurat.serving.model.scorer import Scorer
from ziggurat.storage.prefetcher import TooManyRows
from ziggurat.training.ensemble.combined import CombinedRecommender
from ziggurat.training.evaluate import evaluate_split
from ziggurat.training.recommender import Recommender

SAMPLE_ROWS = 1_000
_FIGURES = {"ne", "auc", "log_loss", "rmse", "mae", "relative_loss"}


def compared(
    scorer: Scorer,
    recommender: Recommender | CombinedRecommender,
    dataset: Dataset,
    batch_size: int,
    precision: Precision,
    progress: Progress,
) -> dict[str, float]:
    """Returns how far predictions of the export differ from the run's.

    ``sample_rows`` and ``largest_logit_difference`` are of rows of the validation split, or of the training split where
    there is none. At other precisions than fp32 there is also, for each figure of that split, ``SPLIT/FIGURE``: the
    export's less the run's.

    Raises:
        DataError: they differ at ``fp32``, or the split has no rows.
    """
    exported = ExportedModel(scorer, recommender)
    split = split_to_compare(dataset)
    blocks = dataset.split(split)
    sample = Columns([blocks.read(0)], dataset.schema, labelled=False)
    theirs, ours = _both(recommender, exported, sample, np.arange(min(SAMPLE_ROWS, sample.rows)))
    differ = ~((theirs == ours) | (theirs.isnan() & ours.isnan()))
    if precision == "fp32":
        if differ.any():
            row = int(differ.any(1).nonzero()[0])
            by = float((theirs - ours).abs().nan_to_num(nan=math.inf).max())
            raise DataError(
                f"the export predicts otherwise than the run: row {row + 1} of the {split} rows, by up to {by:g}",
                "report it: at fp32 they must be equal to the bit",
            )
        return {"sample_rows": float(len(theirs)), "largest_logit_difference": 0.0}
    found = [
        evaluate_split(model, blocks, dataset.schema, torch.device("cpu"), batch_size, (), progress).compute()
        for model in (recommender, exported)
    ]
    return {
        "sample_rows": float(len(theirs)),
        "largest_logit_difference": float((theirs - ours).abs().max()),
        **_changes(split, *found),
    }


def split_to_compare(dataset: Dataset) -> Split:
    """Returns the validation split, or the next that has rows.

    Raises:
        DataError: none has.
    """
    splits: tuple[Split, ...] = ("validation", "train", "test")
    for name in splits:
        if dataset.split(name).rows:
            return name
    raise DataError(f"{dataset.folder}: has no rows to compare the export on", "name another with --prepared DIR")


@torch.no_grad()
def _both(
    recommender: Recommender | CombinedRecommender,
    exported: ExportedModel,
    sample: Columns,
    rows: npt.NDArray[np.int64],
) -> tuple[Tensor, Tensor]:
    """Returns the columns of some rows, of both; of fewer rows at a time if memory cannot hold those of tables."""
    batch = sample.batch(rows)
    try:
        return recommender(batch)[0], exported(batch)[0]
    except TooManyRows:
        if len(rows) == 1:
            raise
    parts = [_both(recommender, exported, sample, half) for half in np.array_split(rows, 2)]
    return torch.cat([theirs for theirs, _ in parts]), torch.cat([ours for _, ours in parts])


def _changes(split: str, before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {
        f"{split}/{name}": after[name] - value
        for name, value in before.items()
        if name.rpartition("/")[2] in _FIGURES and math.isfinite(value) and math.isfinite(after[name])
    }
