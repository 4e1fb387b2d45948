"""``ziggurat search hyperparameters``: searches the settings of an experiment that validate best."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ziggurat.cli.options import Config, DataFolder, Overrides, PreparedOutput


def command(
    config: Config,
    trials: Annotated[
        int, typer.Option(min=1, help="Number of trials in all; a search that has some goes on.", show_default=False)
    ],
    overrides: Overrides = None,
    data: DataFolder = None,
    prepared: PreparedOutput = None,
    run: Annotated[Path | None, typer.Option(help="Folder of the search; default: searches/NAME.")] = None,
    hours: Annotated[float | None, typer.Option(help="Stop after so many hours; run it again to go on.")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Trials at a time; they share the cores. Default: 1, or the CPUs of --ray."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Train the trials on a Ray cluster: HOST:PORT of its head, auto, or local. Needs ziggurat[ray].",
        ),
    ] = None,
    space: Annotated[
        Path | None, typer.Option(help="YAML file with keys to vary; default: what follows from the config.")
    ] = None,
    ensemble: Annotated[
        int | None,
        typer.Option(
            "--ensemble", metavar="K", min=2, help="Average the best K trials with weights chosen on validation."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seeds the choice of settings.")] = 0,
) -> None:
    """Search learning rates, widths, dropout and more by training. Needs ziggurat[search]. It resumes like train.

    \b
    Examples:
      ziggurat search hyperparameters exp.yaml --trials 30
      ziggurat search hyperparameters exp.yaml --trials 100 --hours 8 --jobs 4
      ziggurat search hyperparameters exp.yaml --trials 30 --space space.yaml
      ziggurat search hyperparameters exp.yaml --trials 200 --ray 10.0.0.1:6379
      ziggurat search hyperparameters exp.yaml --trials 30 --ensemble 5
    """
    from ziggurat.cli.ensemble import print_ensemble
    from ziggurat.cli.figures import figures_table
    from ziggurat.cli.progress import console_progress
    from ziggurat.search.hyperparameters import search_hyperparameters
    from ziggurat.search.outputs import BEST_FILE, lead_words
    from ziggurat.search.page import PAGE_FILE
    from ziggurat.training.experiment import load_experiment

    experiment = load_experiment(config, overrides or [], data)
    with console_progress() as progress:
        searched = search_hyperparameters(
            experiment, run, trials=trials, hours=hours, jobs=jobs, space=space, seed=seed, prepared=prepared,
            ray=ray, ensemble=ensemble, progress=progress,
        )  # fmt: skip
    if searched.missing:
        why = f"stopped by {searched.signal.name}" if searched.signal is not None else "the time is up"
        left = (
            f"{searched.missing} of {trials} trials are left, those that ran are saved. Run the same command to resume."
        )
        typer.echo(f"{why}; {left}", err=True)
    best = searched.best
    if best is not None:
        finite = {name: value for name, value in best.figures.items() if value is not None}
        figures_table(
            f"{searched.folder} (trial {best.number} of {len(searched.trials)})",
            {"validation": finite, **({"test": searched.test} if searched.test else {})},
        )
        if searched.lead is not None:
            typer.echo(lead_words(searched.lead))
        typer.echo(searched.folder / PAGE_FILE)
        typer.echo(searched.folder / BEST_FILE)
    if searched.ensemble is not None:
        figures: dict[str, dict[str, float]] = {"validation": dict(searched.ensemble.validation)}
        if searched.ensemble.test:
            figures["test"] = dict(searched.ensemble.test)
        print_ensemble(searched.ensemble.built)
        figures_table(str(searched.ensemble.folder), figures)
    if searched.signal is not None:
        raise typer.Exit(128 + searched.signal)
