"""``ziggurat``: mounts the commands, which import what they need only when they run, and prints errors for people."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from ziggurat._version import __version__
from ziggurat.cli import (
    checkpoint,
    datasets,
    doctor,
    evaluate,
    generate,
    ingest,
    init,
    plan,
    predict,
    prepare,
    report,
    scale,
    schema,
    train,
)
from ziggurat.core.errors import ZigguratError
from ziggurat.parallel.environment import is_one_of_several

app = typer.Typer(
    help="Recommendation models: from raw interaction logs to a trained, evaluated model, with one config.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text: it pipes, it fits any width, and it starts faster
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("init", short_help="Look at logs, write a config.")(init.command)
app.command("prepare", short_help="Fit encoders, write the encoded dataset.")(prepare.command)
app.command("plan", short_help="Show which table goes where.")(plan.command)
app.command("ingest", short_help="Serve batches to trainers.")(ingest.command)
app.command("train", short_help="Prepare if needed, train, resume.")(train.command)
app.command("evaluate", short_help="Measure a run on a split of its data.")(evaluate.command)
app.command("predict", short_help="Score raw logs with a run.")(predict.command)
app.command("report", short_help="Draw a run as one HTML file.")(report.command)
app.command("scale", short_help="Fit the law of compute and quality.")(scale.command)
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(datasets.app, name="datasets")
app.command("generate", short_help="Write a log with planted structure.")(generate.command)
app.command("schema", short_help="Print the JSON Schema of the config.")(schema.command)
app.command("doctor", short_help="Check this installation.")(doctor.command)


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


_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""What typer raises for arguments it cannot parse, reached so because newer releases carry a click of their own."""


class Stopped(BaseException):
    """SIGINT or SIGTERM outside of the training loop, which has its own way to stop."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


GARBAGE = 50_000
"""New objects after which Python looks for garbage. At its own 700, that took .9 of the 6 seconds in which all that
trains is imported, to stay."""


def main() -> None:
    """Entry point: user errors without a traceback; a closed pipe is no error.

    Exit status: 0; 1 for an error; 2 for a command that cannot be understood; 128 + n for signal n.
    """
    gc.set_threshold(GARBAGE)
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        sys.exit(app(prog_name="ziggurat", standalone_mode=False) or 0)
    except _USAGE_ERROR as error:
        _explain_usage(error)
        sys.exit(2)
    except ZigguratError as error:
        if not _told_launcher(error):
            _complain(error.problem, error.hint)
        _leave(1)
    except Stopped as stopped:
        said = f"stopped by {stopped.number.name}; nothing is half-written; run the command again to go on"
        if os.environ.get("RANK", "0") == "0":  # of several ranks, all are told, and one says so
            typer.echo(said, err=True)
        _leave(128 + stopped.number)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except ModuleNotFoundError as error:
        from ziggurat.core.engine import explain_missing_module

        explained = explain_missing_module(error)
        if explained is None:
            raise
        if not _told_launcher(explained):
            _complain(explained.problem, explained.hint)
        _leave(1)
    except OSError as error:
        if _told_launcher(error):
            _leave(1)
        _complain(str(error), "look at that path: does it exist, is it a file or folder as expected, may you use it?")
        sys.exit(1)
    except Exception as error:
        if _told_launcher(error):
            traceback.print_exc()
            _leave(1)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(status: int) -> NoReturn:
    """Exit; of several ranks at once, where a normal exit waits for exchanges that the others do not answer."""
    if is_one_of_several():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _told_launcher(error: Exception) -> bool:
    """Where this process is one of several ranks: leave the error for what started them, which tells it once."""
    if "WORLD_SIZE" not in os.environ:
        return False
    from ziggurat.parallel.launch import report_failure

    return report_failure(error)


def _explain_usage(error: Any) -> None:
    """One of our two lines for what the parser refused; the help itself for a command without arguments."""
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message())
        return
    command = "ziggurat" if error.ctx is None else error.ctx.command_path
    problem = error.format_message().replace("Value error, ", "")
    _complain(f"{command}: {problem}", f"`{command} --help` shows what it takes")


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(signal.Signals(number))


def _complain(problem: str, hint: str) -> None:
    rank = f"rank {os.environ.get('RANK', '?')}" if is_one_of_several() else ""
    where = f"{rank}: " if rank and not problem.startswith((f"{rank} ", f"{rank}:")) else ""
    typer.secho(f"error: {where}{problem}", fg=typer.colors.RED, err=True)
    if hint:
        typer.secho(f"hint:  {hint}", fg=typer.colors.YELLOW, err=True)
