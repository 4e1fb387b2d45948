"""``ziggurat train``: prepare if needed, train, resume."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ziggurat.cli.options import (
    Config,
    DataFolder,
    Overrides,
    PreparedTo,
    begun_from,
    check_begun_from,
    read_from,
)


def command(
    config: Config,
    overrides: Overrides = None,
    data: DataFolder = None,
    prepared: PreparedTo = None,
    run: Annotated[Path | None, typer.Option(help="Run folder; default: runs/NAME.")] = None,
    nproc: Annotated[
        int | None, typer.Option(min=1, help="Ranks on this machine that train together; default: one.")
    ] = None,
    restarts: Annotated[
        int, typer.Option(min=0, help="With --nproc: how often to go on from the last checkpoint after a crash.")
    ] = 0,
    readers: Annotated[
        list[str] | None,
        typer.Option(help="Readers (`ziggurat ingest`) that make the batches, grpc://HOST:PORT,...; may be repeated."),
    ] = None,
    warm_start: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Begin with the weights of this run's best checkpoint, unless there is one."),
    ] = None,
    stop_after: Annotated[
        int | None, typer.Option(min=1, help="Save and stop once this many steps are done in all.")
    ] = None,
) -> None:
    """Prepare if needed, then train; run it again to go on exactly where it stopped.

    \b
    Examples:
      ziggurat train exp.yaml
      ziggurat train exp.yaml --set training.epochs=3 --run runs/short
      ziggurat train exp.yaml --set features.user_id.encoder.min_count=5
      ziggurat train exp.yaml --run runs/tuesday --warm-start runs/monday
      ziggurat train exp.yaml --nproc 4
      torchrun --nproc-per-node 4 \\
        -m -- ziggurat train exp.yaml --run runs/exp
    """
    from ziggurat.core.errors import ConfigError
    from ziggurat.parallel.environment import check_world, is_one_of_several
    from ziggurat.parallel.launch import check_ranks, command_of, follow_launcher, launch, leads

    check_world()
    extra, begun = read_from(readers), begun_from(warm_start, overrides)
    if restarts and (nproc or 1) == 1:
        raise ConfigError(
            f"--restarts {restarts}: needs --nproc 2 or more; only ranks that --nproc starts are started again",
            "add --nproc N, or leave --restarts out; after a crash the same command goes on from the last checkpoint, "
            "and torchrun has --max-restarts",
        )
    if nproc is not None and nproc > 1 and not is_one_of_several():
        note = lambda line: typer.echo(line, err=True)  # noqa: E731
        raise typer.Exit(launch(command_of(sys.argv[1:]), nproc, restarts, note))
    check_ranks(nproc)
    follow_launcher()
    from ziggurat.cli.figures import figures_table
    from ziggurat.cli.progress import console_progress
    from ziggurat.training import api

    experiment = api.load_experiment(config, [*(overrides or []), *extra], data)
    check_begun_from(warm_start, experiment.training.warm_start)
    if begun:
        experiment = api.load_experiment(config, [*(overrides or []), *extra, *begun], data)
    with console_progress() as progress:
        outcome = api.train(experiment, run, prepared=prepared, progress=progress, stop_after=stop_after)
    if outcome.results is None and outcome.signal is not None:
        if leads():
            typer.echo(
                f"stopped by {outcome.signal.name}; saved at step {outcome.step}. Run the same command to go on.",
                err=True,
            )
        raise typer.Exit(128 + outcome.signal)
    if not leads():
        return
    if outcome.results is None:
        asked = "as another rank was asked to" if stop_after is None else "as asked"
        typer.echo(f"stopped after step {outcome.step} {asked}; saved. Run the same command to go on.")
        return
    figures_table(f"{outcome.run.folder} (best at step {outcome.results['best_step']})", outcome.results["figures"])
