"""Sample report inputs with every section filled from a simulated run, and hostile text in all user input."""

from __future__ import annotations

import numpy as np

from ziggurat.metrics.config import MetricsConfig
from ziggurat.metrics.metric_set import MetricSet
from ziggurat.report.inputs import (
    ComparisonRow,
    FeatureRow,
    ModelPart,
    ModelSize,
    ReportInputs,
    SliceRow,
    TableRow,
    TaskResult,
    access_skew,
)

HOSTILE = "</style><script>alert('x')</script> & \"quoted\" \x07 <img src=http://evil.example/x.png>"


def evaluated(tasks: tuple[str, ...], seed: int = 0, rows: int = 20_000) -> MetricSet:
    rng = np.random.default_rng(seed)
    truth = rng.normal(-0.5, 1.4, (rows, len(tasks)))
    labels = (rng.random(truth.shape) < 1 / (1 + np.exp(-truth))).astype(np.float32)
    logits = (1.2 * truth + rng.normal(0, 0.8, truth.shape)).astype(np.float32)
    metrics = MetricSet(tasks, MetricsConfig(), grouped=True, slices=("gender",))
    metrics.update(logits, labels, None, rng.integers(0, 900, rows), {"gender": rng.integers(0, 3, rows)})
    return metrics


def results(tasks: tuple[str, ...]) -> list[TaskResult]:
    rows: list[TaskResult] = []
    for split, seed in (("test", 0), ("validation", 1)):
        metrics = evaluated(tasks, seed)
        curves = metrics.curves()
        rows += [
            TaskResult(task, split, metrics[task].compute(), metrics[task].undefined(), curves[task]) for task in tasks
        ]
    return rows


def history(tasks: tuple[str, ...]) -> list[dict[str, object]]:
    rng = np.random.default_rng(2)
    rows: list[dict[str, object]] = []
    for step in range(10, 1510, 10):
        loss = 0.48 + 0.25 * np.exp(-step / 200) + rng.normal(0, 0.008)
        rows.append({"step": step, "epoch": step // 300, "split": "train", "loss": loss, "lr": 1e-3})
        if step % 150 == 0:
            progress = step / 1500
            entry: dict[str, object] = {"step": step, "epoch": step // 300, "split": "validation"}
            for task in tasks:
                prefix = f"{task}/" if len(tasks) > 1 else ""
                entry[f"{prefix}log_loss"] = 0.55 - 0.06 * progress + 0.05 * progress**3
                entry[f"{prefix}ne"] = 0.81 - 0.08 * progress + 0.06 * progress**3
                entry[f"{prefix}auc"] = 0.74 + 0.05 * progress - 0.02 * progress**3
            rows.append(entry)
    return rows


def features() -> list[FeatureRow]:
    def skew(exponent: float, rows: int):
        return access_skew(np.rint(1e6 / np.arange(1, rows + 1) ** exponent).astype(np.int64))

    return [
        FeatureRow("age", "numeric", 0.031, mean=32.97, std=11.56),
        FeatureRow("clicks_30d", "numeric", 0.0, mean=0.00031, std=1.9e5),
        FeatureRow("user_id", "categorical", 0.0, 1.0, 943, "user_id", skew=skew(0.4, 943)),
        FeatureRow("item_id", "categorical", 0.0002, 1.0, 1682, "item_id", skew=skew(1.1, 1682)),
        FeatureRow("genres", "bag", 0.12, 2.13, 19, "genres", skew=skew(0.8, 19)),
        FeatureRow("history", "sequence", 0.046, 17.4, 1650, "item_id", skew=skew(1.1, 1682), coverage=0.613),
        FeatureRow("a_feature_with_quite_a_long_name_indeed", "categorical", 0.8, 0.2, 1_234_567, "long", None),
    ]


def sample_inputs(tasks: tuple[str, ...] = ("like",), title: str = "movielens") -> ReportInputs:
    finals = results(tasks)
    metrics = evaluated(tasks)
    comparison = [
        row
        for task in tasks
        for row in (
            ComparisonRow(task, "DCN-V2", True, metrics[task].compute(), 41.2, "The config of this run."),
            ComparisonRow(
                task,
                "LightGBM",
                False,
                {"auc": 0.7881, "log_loss": 0.5541, "ne": 0.8102},
                12.9,
                "num_leaves 31, learning rate 0.05, 412 trees; 4 settings tried on validation.",
            ),
            ComparisonRow(task, "Logistic regression", False, {"auc": 0.7402, "log_loss": 0.5829, "ne": 0.9001}, 154.0),
        )
    ]
    decoded = {0: "missing", 1: "M", 2: HOSTILE}
    return ReportInputs(
        title=title,
        created="2025-01-31 12:00 UTC",
        model=ModelSize(
            "DCN-V2",
            184_321,
            371_234,
            [ModelPart("cross layers", 61_440, 122_880), ModelPart("deep layers", 122_881, 248_354)],
        ),
        results=finals,
        history=history(tasks),
        best_step=1050,
        rows={"train": 80_367, "validation": 9_866, "test": 9_767},
        quarantined_rows=12,
        features=features(),
        tables=[
            TableRow("user_id", 945, 16, 60_480, 3_780),
            TableRow("item_id", 1684, 16, 107_776, 6_736),
            TableRow("genres", 21, 16, 1_344, 84),
        ],
        slices=[
            SliceRow(row.task, row.feature, decoded.get(row.id or 0, "other"), row.figures)
            for row in metrics.compute_slices()
        ],
        comparison=comparison,
        notes=["Training stopped early: validation NE had not fallen for 3 evaluations."],
        config_text=f"name: movielens\ntraining:\n  batch_size: 4096\n  note: {HOSTILE}\n",
        environment={"ziggurat": "0.1.0", "torch": "2.13.0+cpu", "seed": 0, "machine": "x86_64, " + "2 cores " * 20},
    )


def rare_inputs() -> ReportInputs:
    """Returns inputs with long tick labels: a base rate of about 1 in 10,000, a loss in the thousands, millions of
    steps."""
    rng = np.random.default_rng(8)
    logits = rng.normal(-9.5, 0.4, (50_000, 1)).astype(np.float32)
    labels = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    labels[:2, 0] = 1
    metrics = MetricSet(["click"])
    metrics.update(logits, labels)
    history = [
        {"step": step * 1_000_000, "epoch": 0, "split": "train", "loss": 12_345.678 / step} for step in range(1, 30)
    ]
    result = TaskResult("click", "test", metrics.compute(), metrics.undefined(), metrics.curves()["click"])
    return ReportInputs("rare", results=[result], history=history)
