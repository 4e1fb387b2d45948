"""``ziggurat train``: prepares if needed, trains, resumes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ziggurat.cli.options import (
    Config,
    DataFolder,
    Overrides,
    PreparedOutput,
    check_warm_start_option,
    reader_overrides,
    warm_start_overrides,
)


def command(
    config: Config,
    overrides: Overrides = None,
    data: DataFolder = None,
    prepared: PreparedOutput = None,
    run: Annotated[Path | None, typer.Option(help="Run folder; default: runs/NAME.")] = None,
    nproc: Annotated[
        int | None, typer.Option(min=1, help="Number of ranks to start on this machine; default: 1.")
    ] = None,
    restarts: Annotated[
        int, typer.Option(min=0, help="With --nproc: how often to restart from the last checkpoint after a crash.")
    ] = 0,
    readers: Annotated[
        list[str] | None,
        typer.Option(help="Readers (`ziggurat ingest`) to take batches from, grpc://HOST:PORT,...; may be repeated."),
    ] = None,
    warm_start: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="Start from the best checkpoint of this run, unless the new run has a checkpoint."
        ),
    ] = None,
    new_plan: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Take a new plan for the tables of several ranks as the run resumes, by the look-ups ahead: drifted "
            "(if other copied rows would save 3 %), always or never; as planning.new_plan.",
        ),
    ] = None,
    stop_after: Annotated[
        int | None, typer.Option(min=1, help="Save and stop once the run has done this many steps in total.")
    ] = None,
) -> None:
    """Prepare if needed, then train. Run the same command again to resume exactly where it stopped.

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
    from ziggurat.parallel.environment import check_world, has_other_ranks
    from ziggurat.parallel.launch import check_ranks, command_of, launch, leads, stop_with_launcher

    check_world()
    reader_settings, warm_start_settings = reader_overrides(readers), warm_start_overrides(warm_start, overrides)
    reader_settings += [f"planning.new_plan={new_plan}"] if new_plan is not None else []
    if restarts and (nproc or 1) == 1:
        raise ConfigError(
            f"--restarts {restarts}: needs --nproc 2 or more, as only ranks that --nproc starts are restarted",
            "add --nproc N, or leave --restarts out; after a crash the same command resumes from the last checkpoint, "
            "and torchrun has --max-restarts",
        )
    if nproc is not None and nproc > 1 and not has_other_ranks():
        note = lambda line: typer.echo(line, err=True)  # noqa: E731
        status = launch(command_of(sys.argv[1:]), nproc, restarts, note)
        if status is not None:
            raise typer.Exit(status)  # else this process is now one of the ranks
    check_ranks(nproc)
    stop_with_launcher()
    from ziggurat.cli.figures import figures_table
    from ziggurat.cli.progress import console_progress
    from ziggurat.training import api

    experiment = api.load_experiment(config, [*(overrides or []), *reader_settings], data)
    check_warm_start_option(warm_start, experiment.training.warm_start)
    if warm_start_settings:
        experiment = api.load_experiment(config, [*(overrides or []), *reader_settings, *warm_start_settings], data)
    with console_progress() as progress:
        outcome = api.train(experiment, run, prepared=prepared, progress=progress, stop_after=stop_after)
    if outcome.results is None and outcome.signal is not None:
        if leads():
            typer.echo(
                f"stopped by {outcome.signal.name}; saved at step {outcome.step}. Run the same command to resume.",
                err=True,
            )
        raise typer.Exit(128 + outcome.signal)
    if not leads():
        return
    if outcome.results is None:
        reason = "because another rank received a signal" if stop_after is None else "as requested"
        typer.echo(f"stopped after step {outcome.step} {reason}; saved. Run the same command to resume.")
        return
    figures_table(f"{outcome.run.folder} (best at step {outcome.results['best_step']})", outcome.results["figures"])
    if experiment.data.negatives is not None:
        from ziggurat.features.negatives_config import protocol

        typer.echo(protocol(experiment.data.negatives))
