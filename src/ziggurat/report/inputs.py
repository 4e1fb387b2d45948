"""Everything that a report shows, as plain values; the page is a pure function of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.metrics.curves import Curves, ValueBins


@dataclass(frozen=True, slots=True)
class TaskResult:
    """One task's final figures on one split.

    Attributes:
        task: the label's name.
        split: ``test`` or ``validation``.
        figures: the metrics, from ``compute`` of its metrics; nan if undefined.
        undefined: metric → why it is nan, from ``undefined`` of its metrics.
        curves: ROC, calibration and score histograms of a label that is a rate, or None.
        bins: mean labels by prediction of a label that is a number, or None.
    """

    task: str
    split: str
    figures: Mapping[str, float]
    undefined: Mapping[str, str] = field(default_factory=dict[str, str])
    curves: Curves | None = None
    bins: ValueBins | None = None


@dataclass(frozen=True, slots=True)
class AccessSkew:
    """The skew of accesses to the rows of a table in training, as a cumulative curve of P points.

    Attributes:
        row_share_P: share of the table's rows, most used first, from 0 to 1.
        access_share_P: share of all look-ups that these rows take, from 0 to 1.
        top_percent: share of look-ups that the most used 1 % of the rows (at least one row) take.
    """

    row_share_P: Sequence[float]
    access_share_P: Sequence[float]
    top_percent: float


@dataclass(frozen=True, slots=True)
class FeatureRow:
    """Statistics of one feature over the training rows; None if a statistic does not apply.

    Attributes:
        name: the feature.
        kind: ``numeric``, ``categorical``, ``bag`` or ``sequence``.
        missing_share: share of rows whose cell is empty.
        coverage: share of rows with at least one value; None if it is 1 − ``missing_share``. A bag or sequence may be
            empty without being missing.
        pooling_factor: mean number of ids per row.
        cardinality: number of distinct values.
        table: the embedding table, possibly shared with other features.
        mean: mean of a numeric feature before its transforms.
        std: standard deviation of a numeric feature before its transforms.
        skew: the access skew of the table.
    """

    name: str
    kind: str
    missing_share: float
    pooling_factor: float | None = None
    cardinality: int | None = None
    table: str | None = None
    mean: float | None = None
    std: float | None = None
    skew: AccessSkew | None = None
    coverage: float | None = None

    @property
    def covered_share(self) -> float:
        return 1 - self.missing_share if self.coverage is None else self.coverage


@dataclass(frozen=True, slots=True)
class TableRow:
    """One embedding table with the bytes of its weights and optimizer state; ``placement`` says which ranks held it.

    ``map_bytes`` are those of the map of an encoder that makes the table smaller.
    """

    name: str
    rows: int
    dim: int
    weight_bytes: int
    optimizer_bytes: int = 0
    placement: str = ""
    map_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelPart:
    """A named part of the dense model: its parameters, and the FLOPs of its forward pass per example, if known."""

    name: str
    parameters: int
    flops: int | None


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The model's size.

    Attributes:
        name: the model.
        dense_parameters: the number of parameters outside the tables.
        flops: FLOPs of the forward pass per example, with a multiply-add counted as 2; None if they are not known.
        parts: the model's parts.
        note: why the FLOPs are not known, or how they were counted if the model does not state them.
        compression: the numbers that modules of towers receive over those that they return; None without modules.
    """

    name: str
    dense_parameters: int
    flops: int | None
    parts: Sequence[ModelPart] = ()
    note: str = ""
    compression: float | None = None


@dataclass(frozen=True, slots=True)
class SliceRow:
    """The metrics of one slice; ``value`` is the decoded value, ``missing`` or ``other``."""

    task: str
    feature: str
    value: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One model on the test split; ``settings`` describes its tuning.

    ``figures`` needs auc, log_loss and ne, or for a label that is a number rmse, mae, xauc and relative_loss.
    """

    task: str
    model: str
    ours: bool
    figures: Mapping[str, float]
    seconds: float | None = None
    settings: str = ""


@dataclass(frozen=True, slots=True)
class ReportInputs:
    """The contents of a run's report. Empty sections are left out.

    Attributes:
        title: the experiment's name.
        model: the model's size; None leaves the section out.
        created: date and time as shown.
        results: final metrics per task (in the config's order) and split; each task's test split gives a headline.
        history: rows of ``metrics.jsonl``: ``step``, ``epoch``, ``split`` and metrics by their full names
            (``auc`` or ``like/auc``; the loss as ``loss`` or ``log_loss``).
        best_step: the step whose weights were evaluated.
        rows: split → number of rows.
        quarantined_rows: rows that preparation rejected.
        features: the features in schema order.
        tables: the embedding tables.
        rank_bytes: for each rank, the bytes of its tables and their optimizer states; empty for a single process.
        slices: slices by task and feature, in the order shown.
        comparison: our model and the baselines.
        notes: important remarks, shown under the headline.
        config_text: the resolved config as YAML.
        environment: versions, seed and machine.
    """

    title: str
    created: str = ""
    model: ModelSize | None = None
    results: Sequence[TaskResult] = ()
    history: Sequence[Mapping[str, Any]] = ()
    best_step: int | None = None
    rows: Mapping[str, int] = field(default_factory=dict[str, int])
    quarantined_rows: int = 0
    features: Sequence[FeatureRow] = ()
    tables: Sequence[TableRow] = ()
    rank_bytes: Sequence[int] = ()
    slices: Sequence[SliceRow] = ()
    comparison: Sequence[ComparisonRow] = ()
    notes: Sequence[str] = ()
    config_text: str = ""
    environment: Mapping[str, object] = field(default_factory=dict[str, object])


def access_skew(counts: npt.NDArray[np.integer[Any]], points: int = 33) -> AccessSkew | None:
    """Computes a table's skew from the number of look-ups of each row, shape (rows,); None without look-ups.

    Points are at squared fractions of the rows, so that they are denser at the start, where the curve bends.
    """
    total = int(counts.sum())
    if total == 0:
        return None
    accessed = np.concatenate([[0], np.cumsum(np.sort(counts)[::-1])]) / total
    rows = len(counts)
    place = np.unique(np.rint(np.linspace(0, 1, points) ** 2 * rows).astype(np.int64))
    top_rows = max(1, rows // 100)
    return AccessSkew((place / rows).tolist(), accessed[place].tolist(), float(accessed[top_rows]))
