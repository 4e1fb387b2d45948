"""``ziggurat policies``: trains policies in cycles, chooses an ensemble of them, and judges it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ziggurat.cli.options import Overrides

if TYPE_CHECKING:
    from ziggurat.policies.config import PoliciesConfig
    from ziggurat.policies.records import EvaluationRecord, SelectionRecord

app = typer.Typer(help="Train policies in cycles, and let several decide together.", no_args_is_help=True)

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file of the policies.", show_default=False)]
PoliciesRun = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.", show_default=False)]


@app.command("train")
def train_command(
    config: Config,
    overrides: Overrides = None,
    run: Annotated[Path | None, typer.Option(help="Folder of the run; default: policies/NAME.")] = None,
) -> None:
    """Train one policy, with a snapshot at the end of each cycle. Needs ziggurat[rl]. It resumes like train.

    \b
    Examples:
      ziggurat policies train cartpole.yaml
      ziggurat policies train cartpole.yaml --run policies/second
      ziggurat policies train cartpole.yaml --set training.seed=1
    """
    from ziggurat.cli.progress import console_progress
    from ziggurat.policies.run_folder import load_config
    from ziggurat.policies.training import train
    from ziggurat.training.signals import StopRequest

    settings = load_config(config, overrides or [])
    with console_progress() as progress, StopRequest() as stop:
        trained = train(settings, run, progress=progress, stop=lambda: stop.signal)
    if trained.signal is not None:
        left = f"{trained.steps:,} of {settings.training.steps:,} steps are saved. Run the same command to resume."
        typer.echo(f"stopped by {trained.signal.name}; {left}", err=True)
        raise typer.Exit(128 + trained.signal)
    typer.echo(f"{trained.folder}: {trained.snapshots} snapshots, {trained.steps:,} steps")


@app.command("select")
def select_command(run: PoliciesRun, overrides: Overrides = None) -> None:
    """Choose members and the rule by which they act, in episodes that evaluation does not use.

    \b
    Examples:
      ziggurat policies select policies/cartpole
      ziggurat policies select policies/cartpole --set selection.members=2
    """
    from ziggurat.cli.progress import console_progress
    from ziggurat.policies.choosing import choose

    settings = _changed(run, overrides, ("selection", "ensemble", "evaluation"))
    with console_progress() as progress:
        found = choose(run, settings, progress=progress)
    _print_selection(run, found)


@app.command("evaluate")
def evaluate_command(run: PoliciesRun, overrides: Overrides = None) -> None:
    """Judge the ensemble against each snapshot, in episodes that decided nothing.

    \b
    Examples:
      ziggurat policies evaluate policies/cartpole
      ziggurat policies evaluate policies/cartpole --set evaluation.episodes=100
    """
    from ziggurat.cli.progress import console_progress
    from ziggurat.policies.judging import judge

    settings = _changed(run, overrides, ("evaluation",))
    with console_progress() as progress:
        found = judge(run, settings, progress=progress)
    _print_evaluation(run, found)


@app.command("report")
def report_command(
    run: PoliciesRun,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The HTML file; default: RUN/policies.html.")] = None,
) -> None:
    """Write a page with what is known of a run: training, divergences, ensembles, an episode.

    \b
    Example:
      ziggurat policies report policies/cartpole
    """
    from ziggurat.report.policies.page import write_policies

    typer.echo(write_policies(run, out))


def _changed(run: Path, overrides: list[str] | None, sections: tuple[str, ...]) -> PoliciesConfig:
    """Returns the config of a run with overrides of some sections.

    Raises:
        ConfigError: an override is of another section.
    """
    from ziggurat.core.errors import ConfigError
    from ziggurat.policies.run_folder import overridden, read_config

    known = read_config(run)
    for each in overrides or ():
        if each.partition(".")[0].strip() not in sections:
            raise ConfigError(
                f"--set {each}: only {', '.join(sections)} can be changed here", "train another run for it"
            )
    return overridden(known.model_dump(mode="json"), overrides or [], str(run)) if overrides else known


def _print_selection(run: Path, found: SelectionRecord) -> None:
    rows = [(f"cycle {cycle}", "", mean) for cycle, mean in zip(found.cycles, found.means, strict=True)]
    rows += [(f"cycles {', '.join(map(str, each.members))}", each.rule, each.mean) for each in found.candidates]
    _print_rows(f"{run}: returns in the selection's episodes", rows)
    chosen = found.ensemble
    typer.echo(f"chosen: cycles {', '.join(map(str, chosen.members))}, {chosen.rule}")


def _print_evaluation(run: Path, found: EvaluationRecord) -> None:
    rows = [
        ("ensemble", found.ensemble.rule, found.ensemble.mean),
        ("last snapshot", "", found.last.mean),
        ("best snapshot", f"cycle {found.best}", found.best_snapshot.mean),
        ("random actions", "", sum(found.random) / len(found.random)),
    ]
    _print_rows(f"{run}: returns in {len(found.random)} episodes that decided nothing", rows)


def _print_rows(title: str, rows: list[tuple[str, str, float]]) -> None:
    from rich.console import Console
    from rich.table import Table

    typer.echo(title)
    table = Table(box=None, pad_edge=False)
    table.add_column("policy")
    table.add_column("")
    table.add_column("mean return", justify="right")
    for name, note, mean in rows:
        table.add_row(name, note, f"{mean:,.4g}")
    Console(highlight=False).print(table)
