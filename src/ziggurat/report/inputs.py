"""Everything a report shows, as plain values: the page is a pure function of this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.metrics.curves import Curves


@dataclass(frozen=True, slots=True)
class TaskResult:
    """One task's final figures on one split.

    Attributes:
        task: the label's name.
        split: ``test`` or ``validation``.
        figures: as ``BinaryMetrics.compute`` gives them; nan where undefined.
        undefined: figure → why it is nan, as ``BinaryMetrics.undefined`` gives them.
        curves: ROC, calibration and score histograms, or None.
    """

    task: str
    split: str
    figures: Mapping[str, float]
    undefined: Mapping[str, str] = field(default_factory=dict[str, str])
    curves: Curves | None = None


@dataclass(frozen=True, slots=True)
class AccessSkew:
    """How unevenly the rows of a table are used in training.

    Attributes:
        row_share_P: share of the table's rows, most used first, from 0 to 1.
        access_share_P: share of all look-ups that fall on them, from 0 to 1.
        top_percent: share of look-ups that fall on the most used hundredth of the rows (at least one row).
    """

    row_share_P: Sequence[float]
    access_share_P: Sequence[float]
    top_percent: float


@dataclass(frozen=True, slots=True)
class FeatureRow:
    """Statistics of one feature over the training rows; None where they do not apply.

    Attributes:
        name: the feature.
        kind: ``numeric``, ``categorical``, ``bag`` or ``sequence``.
        missing_share: share of rows whose cell is empty.
        coverage: share of rows with at least one value; None for what ``missing_share`` leaves. A bag or sequence may
            be empty without being missing.
        pooling_factor: mean number of ids per row.
        cardinality: distinct values seen.
        table: embedding table, possibly shared with other features.
        mean: of a numeric feature, before its transforms.
        std: likewise.
        skew: how unevenly the table's rows are accessed.
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
    """One embedding table; bytes are of the weights and of the optimizer's state, ``held`` says how ranks shared it."""

    name: str
    rows: int
    dim: int
    weight_bytes: int
    optimizer_bytes: int = 0
    held: str = ""


@dataclass(frozen=True, slots=True)
class ModelPart:
    """A named part of the dense model: its parameters, and floating-point operations per example, forward."""

    name: str
    parameters: int
    flops: int


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The model in numbers; ``flops`` per example, forward, a multiply-add counted as 2."""

    name: str
    dense_parameters: int
    flops: int
    parts: Sequence[ModelPart] = ()


@dataclass(frozen=True, slots=True)
class SliceRow:
    """Figures of one slice; ``value`` is the decoded value, ``missing`` or ``other``."""

    task: str
    feature: str
    value: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One model on the test split; ``figures`` needs auc, log_loss and ne; ``settings`` says how it was tuned."""

    task: str
    model: str
    ours: bool
    figures: Mapping[str, float]
    seconds: float | None = None
    settings: str = ""


@dataclass(frozen=True, slots=True)
class ReportInputs:
    """A run, ready to be drawn. Empty sections are left out.

    Attributes:
        title: the experiment's name.
        model: the model's size; None leaves the section out.
        created: date and time, as it should be shown.
        results: final figures per task, in the config's order, and split; each task's test split makes a headline.
        history: rows of ``metrics.jsonl``: ``step``, ``epoch``, ``split`` and figures by their full names
            (``auc`` or ``like/auc``; the loss as ``loss`` or ``log_loss``).
        best_step: the step whose weights were evaluated.
        rows: split → number of rows.
        quarantined_rows: rows that preparation refused.
        features: in schema order.
        tables: embedding tables.
        rank_bytes: of the tables with their optimizers' states that each rank held; empty where one process trained.
        slices: by task and feature, in the order to be shown.
        comparison: our model and the baselines.
        notes: sentences the reader should not miss, shown under the headline.
        config_text: the resolved config, as YAML.
        environment: versions, seed, machine.
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
    """The skew of a table from the number of look-ups of each of its rows, shape (rows,); None when never looked up.

    Points are denser where the curve bends: at squared fractions of the rows.
    """
    total = int(counts.sum())
    if total == 0:
        return None
    accessed = np.concatenate([[0], np.cumsum(np.sort(counts)[::-1])]) / total
    rows = len(counts)
    place = np.unique(np.rint(np.linspace(0, 1, points) ** 2 * rows).astype(np.int64))
    top_rows = max(1, rows // 100)
    return AccessSkew((place / rows).tolist(), accessed[place].tolist(), float(accessed[top_rows]))
