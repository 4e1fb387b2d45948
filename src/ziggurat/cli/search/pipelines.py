"""``ziggurat search pipelines``: searches a preprocessing pipeline for every feature."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ziggurat.cli.options import Config, DataFolder, Overrides


class MethodName(StrEnum):
    """How pipelines are searched."""

    CLUSTER = "cluster"
    KMEANS = "kmeans"
    SHARED = "shared"
    PER_FEATURE = "per_feature"
    TPE = "tpe"
    STANDARD = "standard"


class DownstreamName(StrEnum):
    """What judges pipelines."""

    LOGISTIC_REGRESSION = "logistic_regression"
    MLP = "mlp"
    MODEL = "model"


class MetricName(StrEnum):
    """The metric of the cross-validation."""

    AUC = "auc"
    ACCURACY = "accuracy"
    LOG_LOSS = "log_loss"


def command(
    config: Config,
    overrides: Overrides = None,
    data: DataFolder = None,
    run: Annotated[Path | None, typer.Option(help="Folder of the search; default: searches/NAME-pipelines.")] = None,
    method: Annotated[MethodName, typer.Option(help="How pipelines are searched.")] = MethodName.CLUSTER,
    downstream: Annotated[
        DownstreamName, typer.Option(help="What judges pipelines; `model` trains that of the config each time.")
    ] = DownstreamName.LOGISTIC_REGRESSION,
    metric: Annotated[MetricName, typer.Option(help="The metric of the cross-validation.")] = MetricName.AUC,
    budget: Annotated[int, typer.Option(min=1, help="Evaluations in all; a search that has some goes on.")] = 100,
    rows: Annotated[int, typer.Option(min=100, help="The most training rows to search on.")] = 20_000,
    folds: Annotated[int, typer.Option(min=2, max=50, help="Folds of the cross-validation.")] = 5,
    clusters: Annotated[int, typer.Option(min=1, max=64, help="Clusters of features, at most.")] = 3,
    hours: Annotated[float | None, typer.Option(help="Stop after so many hours; run it again to go on.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Evaluations at a time, each in a process of its own.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seeds folds, draws and the network.")] = 0,
) -> None:
    """Search a preprocessing pipeline for every number, category and time. It resumes like train.

    \b
    Examples:
      ziggurat search pipelines exp.yaml
      ziggurat search pipelines exp.yaml --budget 200 --jobs 4
      ziggurat search pipelines exp.yaml --downstream model --budget 20
      ziggurat search pipelines exp.yaml --method shared
    """
    from rich.console import Console
    from rich.table import Table

    from ziggurat.cli.progress import console_progress
    from ziggurat.search.pipelines.clustering.config import PolicyConfig
    from ziggurat.search.pipelines.experiment_search import BEST_FILE, left_words, search_feature_pipelines
    from ziggurat.search.pipelines.pipeline import title
    from ziggurat.training.experiment import load_experiment

    experiment = load_experiment(config, overrides or [], data)
    with console_progress() as progress:
        searched = search_feature_pipelines(
            experiment, run, method=method.value, downstream=downstream.value, metric=metric.value, budget=budget,
            rows=rows, folds=folds, seed=seed, hours=hours, jobs=jobs, policy=PolicyConfig(clusters=clusters),
            progress=progress,
        )  # fmt: skip
    found = searched.found
    if not found.finished:
        why = f"stopped by {found.signal.name}" if found.signal is not None else "the time is up"
        typer.echo(f"{why}; what was evaluated is saved. Run the same command to resume.", err=True)
    table = Table(title=f"{searched.folder} ({found.evaluations} evaluations)", title_justify="left")
    for name in ("feature", "cluster", "pipeline"):
        table.add_column(name)
    for name, pipeline in found.pipelines.items():
        table.add_row(name, str(found.clusters[name]), title(pipeline))
    Console().print(table)
    typer.echo(f"score {found.score:.5g}, of standard scaling {found.standard:.5g}")
    if searched.left:
        typer.echo(f"left as they are: {left_words(searched.left)}")
    typer.echo(searched.page)
    if found.signal is not None:
        raise typer.Exit(128 + found.signal)
    typer.echo(searched.folder / BEST_FILE)
