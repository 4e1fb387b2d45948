"""``ziggurat search architecture``: searches the layers and the table sizes of a model within limits of costs."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ziggurat.cli.options import Config, DataFolder, Overrides, PreparedOutput


class MethodName(StrEnum):
    """How architectures are searched."""

    SUPERNET = "supernet"
    RANDOM = "random"
    TPE = "tpe"
    EVOLUTION = "evolution"


def command(
    config: Config,
    overrides: Overrides = None,
    data: DataFolder = None,
    prepared: PreparedOutput = None,
    run: Annotated[Path | None, typer.Option(help="Folder of the search; default: searches/NAME-architecture.")] = None,
    space: Annotated[
        Path | None, typer.Option(help="YAML file with the space and its limits; default: docs/search.md.")
    ] = None,
    method: Annotated[
        MethodName, typer.Option(help="A super-net, or trainings one after the other by another method.")
    ] = MethodName.SUPERNET,
    trials: Annotated[
        int | None, typer.Option(min=1, help="With another method: architectures to train in all.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="With another method: begin no trial after so many seconds of training.")
    ] = None,
    cpu_seconds: Annotated[
        float | None,
        typer.Option(help="The same in processor seconds, which do not depend on what else the machine does."),
    ] = None,
    nproc: Annotated[
        int | None, typer.Option(min=1, help="Number of ranks to start on this machine; default: 1.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seeds masks, draws, and the division of the rows.")] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Predict memory and time of the search by a few steps, and end.")
    ] = False,
) -> None:
    """Search widths, depth, interactions and table sizes within limits of costs. It resumes like train.

    \b
    Examples:
      ziggurat search architecture exp.yaml
      ziggurat search architecture exp.yaml --space space.yaml --dry-run
      ziggurat search architecture exp.yaml --nproc 4
      ziggurat search architecture exp.yaml --method evolution --trials 20
    """
    from ziggurat.core.errors import ConfigError
    from ziggurat.parallel.environment import check_world, has_other_ranks
    from ziggurat.parallel.launch import check_ranks, command_of, launch, leads, stop_with_launcher

    check_world()
    for option, value in (("--trials", trials), ("--seconds", seconds), ("--cpu-seconds", cpu_seconds)):
        if value is not None and method is MethodName.SUPERNET:
            raise ConfigError(
                f"{option} {value}: a super-net is one training, whose length the file of --space sets",
                "leave it out, or add --method random; supernet.epochs and retrained are in that file",
            )
    if dry_run and method is not MethodName.SUPERNET:
        raise ConfigError(
            f"--dry-run --method {method.value}: a dry run measures the super-net",
            "leave --method out; another method takes what its trials take, and --seconds or --cpu-seconds bounds it",
        )
    if dry_run and ((nproc is not None and nproc > 1) or has_other_ranks()):
        raise ConfigError("--dry-run: measures on one process", "leave --nproc out, and start no other ranks")
    if nproc is not None and nproc > 1 and not has_other_ranks():
        status = launch(command_of(sys.argv[1:]), nproc, 0, lambda line: typer.echo(line, err=True))
        if status is not None:
            raise typer.Exit(status)  # else this process is now one of the ranks
    check_ranks(nproc)
    stop_with_launcher()
    from ziggurat.cli.figures import figures_table
    from ziggurat.cli.progress import console_progress
    from ziggurat.search.architecture.dry_run import predict_search
    from ziggurat.search.architecture.found import BEST_FILE
    from ziggurat.search.architecture.page import PAGE_FILE
    from ziggurat.search.architecture.search import search_architecture
    from ziggurat.training.experiment import load_experiment

    experiment = load_experiment(config, overrides or [], data)
    with console_progress() as progress:
        if dry_run:
            predicted = predict_search(experiment, config=space, prepared=prepared, progress=progress)
            if leads():
                typer.echo(predicted.text())
            return
        searched = search_architecture(
            experiment, run, config=space, method=method.value, trials=trials, seconds=seconds,
            cpu_seconds=cpu_seconds, seed=seed, prepared=prepared, progress=progress,
        )  # fmt: skip
    if not leads():
        if searched.signal is not None:
            raise typer.Exit(128 + searched.signal)
        return
    found = searched.found
    if not searched.finished:
        why = f"stopped by {searched.signal.name}" if searched.signal is not None else "stopped"
        typer.echo(f"{why}; the state is saved. Run the same command to resume.", err=True)
    if found.best is not None:
        columns: dict[str, dict[str, float]] = {}
        for what, trial in (("best", found.best), ("config as it is", found.trials[0])):
            columns[f"{what}: validation"] = {name: each for name, each in trial.figures.items() if each is not None}
            if trial.number in found.test:
                columns[f"{what}: test"] = found.test[trial.number]
        figures_table(f"{searched.folder} (trial {found.best.number} of {len(found.trials) - 1})", columns)
        if found.keeps_config:
            typer.echo(found.keeps_config)
        typer.echo(searched.folder / PAGE_FILE)
        typer.echo(searched.folder / BEST_FILE)
    if searched.signal is not None:
        raise typer.Exit(128 + searched.signal)
