"""The entry point ``ziggurat``: registers the commands, which import their dependencies lazily, and prints errors."""

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
    ensemble,
    evaluate,
    export,
    generate,
    ingest,
    init,
    plan,
    policies,
    predict,
    prepare,
    report,
    scale,
    schema,
    serve,
    towers,
    train,
    verify,
)
from ziggurat.cli.doctor import command as doctor
from ziggurat.cli.search import commands as search
from ziggurat.core.errors import ZigguratError, printable
from ziggurat.parallel.environment import has_other_ranks

app = typer.Typer(
    help="Recommendation models: from raw interaction logs to a trained, evaluated model, with one config.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text: works in pipes and at any width, and starts faster
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("init", short_help="Infer a config from logs.")(init.command)
app.command("prepare", short_help="Fit encoders, write the encoded dataset.")(prepare.command)
app.command("plan", short_help="Plan the sharding of tables.")(plan.command)
app.command("ingest", short_help="Serve batches to trainers.")(ingest.command)
app.command("train", short_help="Prepare if needed, train, resume.")(train.command)
app.command("ensemble", short_help="Average several checkpoints.")(ensemble.command)
app.command("evaluate", short_help="Compute metrics on a split.")(evaluate.command)
app.command("predict", short_help="Score raw logs with a run.")(predict.command)
app.command("export", short_help="Write a run as a folder to serve.")(export.command)
app.command("report", short_help="Write a run's report as one HTML file.")(report.command)
app.command("scale", short_help="Train growing sizes, fit a scaling law.")(scale.command)
app.add_typer(search.app, name="search")
app.add_typer(policies.app, name="policies")
app.command("towers", short_help="Divide the features among towers.")(towers.command)
app.command("serve", short_help="Answer requests with an export.")(serve.command)
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(datasets.app, name="datasets")
app.command("verify", short_help="Compare all files with their checksums.")(verify.command)
app.command("generate", short_help="Write a synthetic log.")(generate.command)
app.command("schema", short_help="Print the JSON Schema of the config.")(schema.command)
app.command("doctor", short_help="Check this installation.")(doctor.command)


def _print_version(requested: bool) -> None:
    if requested:
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
"""Typer's exception for arguments that it cannot parse; obtained like this as newer releases vendor their own click."""


class Stopped(BaseException):
    """SIGINT or SIGTERM outside the training loop, which handles signals itself."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


GC_THRESHOLD = 50_000
"""New objects that trigger Python's garbage collector. At the default of 700, collections took .9 of the 6 seconds of
importing everything that training needs, without freeing anything."""


def main() -> None:
    """Runs the command line; prints user errors without a traceback, and ignores a closed pipe.

    Exit status: 0; 1 for an error; 2 for invalid usage; 128 + n for signal n.
    """
    gc.set_threshold(GC_THRESHOLD)
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        sys.exit(app(prog_name="ziggurat", standalone_mode=False) or 0)
    except _USAGE_ERROR as error:
        _print_usage_error(error)
        sys.exit(2)
    except ZigguratError as error:
        if not _passed_to_launcher(error):
            _print_error(error.problem, error.hint)
        _exit(1)
    except Stopped as stopped:
        message = f"stopped by {stopped.number.name}; no file is left incomplete; run the command again to continue"
        if os.environ.get("RANK", "0") == "0":  # all ranks receive the signal, one prints it
            typer.echo(message, err=True)
        _exit(128 + stopped.number)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except ModuleNotFoundError as error:
        from ziggurat.core.engine import explain_missing_module

        explained = explain_missing_module(error)
        if explained is None:
            raise
        if not _passed_to_launcher(explained):
            _print_error(explained.problem, explained.hint)
        _exit(1)
    except OSError as error:
        _exit_for_part(error)
        if _passed_to_launcher(error):
            _exit(1)
        _print_error(
            str(error), "check that the path exists, is a file or folder as expected, and is accessible to you"
        )
        sys.exit(1)
    except Exception as error:
        explained = _explain_thread_limit(error)
        if explained is not None:
            if not _passed_to_launcher(explained):
                _print_error(explained.problem, explained.hint)
            _exit(1)
        _exit_for_part(error)
        if _passed_to_launcher(error):
            traceback.print_exc()
            _exit(1)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(status: int) -> NoReturn:
    """Exits; with several ranks by ``os._exit``, as a normal exit would wait for exchanges with ranks that are gone."""
    if has_other_ranks():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _passed_to_launcher(error: Exception) -> bool:
    """Passes the error to our launcher, which prints it once; False if this process is not one of its ranks."""
    if "WORLD_SIZE" not in os.environ:
        return False
    from ziggurat.parallel.launch import report_failure

    return report_failure(error)


def _explain_thread_limit(error: Exception) -> ZigguratError | None:
    """Returns the error for the user if ``error`` comes of a thread that could not be started, else None."""
    if not isinstance(error, RuntimeError):
        return None
    from ziggurat.core.memory import thread_limit_error

    return thread_limit_error(error)


def _exit_for_part(error: Exception) -> None:
    """Exits if ``error`` was raised in a part from outside the package, and tells it by the lines of that part.

    With ``ZIGGURAT_TRACEBACK`` set it returns, and the whole traceback is printed.
    """
    if os.environ.get("ZIGGURAT_TRACEBACK"):
        return
    from ziggurat.core.outside.failures import explained_failure

    explained = explained_failure(error)
    if explained is not None:
        if not _passed_to_launcher(explained):
            _print_error(explained.problem, explained.hint)
        _exit(1)


def _print_usage_error(error: Any) -> None:
    """Prints a usage error as error and hint, or the help for a command without arguments."""
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message())
        return
    command = "ziggurat" if error.ctx is None else error.ctx.command_path
    problem = error.format_message().replace("Value error, ", "")
    _print_error(f"{command}: {problem}", f"`{command} --help` lists its arguments and options")


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(signal.Signals(number))


def _print_error(problem: str, hint: str) -> None:
    rank = f"rank {os.environ.get('RANK', '?')}" if has_other_ranks() else ""
    where = f"{rank}: " if rank and not problem.startswith((f"{rank} ", f"{rank}:")) else ""
    typer.secho(printable(f"error: {where}{problem}"), fg=typer.colors.RED, err=True)
    if hint:
        typer.secho(printable(f"hint:  {hint}"), fg=typer.colors.YELLOW, err=True)
