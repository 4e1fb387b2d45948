"""``ziggurat``: mounts the commands, which import what they need only when they run, and prints errors for people."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
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


class Stopped(BaseException):
    """SIGINT or SIGTERM outside of the training loop, which has its own way to stop."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


def main() -> None:
    """Entry point: user errors without a traceback, exit status 1; 128 + n for signal n; a closed pipe is no error."""
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        app()
    except ZigguratError as error:
        _complain(error.problem, error.mend)
        sys.exit(1)
    except Stopped as stopped:
        typer.echo(f"stopped by {stopped.number.name}; what was finished is kept; run the command again", err=True)
        sys.exit(128 + stopped.number)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _complain(str(error), "look at that path: does it exist, is it a file or folder as expected, may you use it?")
        sys.exit(1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(signal.Signals(number))


def _complain(problem: str, mend: str) -> None:
    typer.secho(f"error: {problem}", fg=typer.colors.RED, err=True)
    if mend:
        typer.secho(f"mend:  {mend}", fg=typer.colors.YELLOW, err=True)
