"""``ziggurat``: mounts the commands, which import what they need only when they run, and prints errors for people."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from ziggurat import __version__
from ziggurat.cli import datasets, doctor, evaluate, generate, init, predict, prepare, report, schema, train
from ziggurat.core.errors import ZigguratError

app = typer.Typer(
    help="Recommendation models: from raw interaction logs to a trained, evaluated model, with one config.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("init")(init.command)
app.command("prepare")(prepare.command)
app.command("train")(train.command)
app.command("evaluate")(evaluate.command)
app.command("predict")(predict.command)
app.command("report")(report.command)
app.add_typer(datasets.app, name="datasets")
app.command("generate")(generate.command)
app.command("schema")(schema.command)
app.command("doctor")(doctor.command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ziggurat {__version__}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction] - typer keeps it
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point: user errors without a traceback, exit status 1; Ctrl-C 130; a closed pipe is no error."""
    try:
        app()
    except ZigguratError as error:
        typer.secho(f"error: {error.problem}", fg=typer.colors.RED, err=True)
        if error.mend:
            typer.secho(f"mend:  {error.mend}", fg=typer.colors.YELLOW, err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
