"""Arguments and options that several commands share, and the config overrides that options stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ziggurat.training.config import WarmStart

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="The experiment's YAML file.", show_default=False)]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.", show_default=False)]
RunOrEnsemble = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a run or of an ensemble.", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a config key, for example training.epochs=3; may be repeated."
    ),
]
DataFolder = Annotated[
    str | None, typer.Option("--data", metavar="FOLDER", help="Folder or URL of the raw files; replaces data.folder.")
]
PreparedOutput = Annotated[
    Path | None, typer.Option("--prepared", help="Folder of the prepared dataset; default: prepared/NAME-HASH.")
]
PreparedInput = Annotated[
    Path | None,
    typer.Option("--prepared", help="Folder of the prepared dataset, if it was moved since the run was trained."),
]
Checkpoint = Annotated[str, typer.Option(help="The checkpoint: best, last, or a step.")]


def given_options(context: typer.Context, *parameters: str) -> list[str]:
    """Returns those of some parameters' options that are on the command line, as they are written there."""
    names = {each.name: each.opts[0] for each in context.command.params}
    sources = {parameter: context.get_parameter_source(parameter) for parameter in parameters}
    return [names[parameter] for parameter, source in sources.items() if source and source.name == "COMMANDLINE"]


def reader_overrides(readers: list[str] | None) -> list[str]:
    """Returns the ``--set`` override that ``--readers A,B --readers C`` stands for.

    Raises:
        ConfigError: a value names no reader, for example because a shell variable is not set.
    """
    from ziggurat.core.errors import ConfigError

    addresses: list[str] = []
    for each in readers or ():
        found = [address.strip() for address in each.split(",") if address.strip()]
        if not found:
            raise ConfigError(
                f"--readers {each!r}: names no reader",
                "give the addresses that `ziggurat ingest` printed, as grpc://HOST:PORT, or leave --readers out to "
                "make the batches in this process",
            )
        addresses += found
    return [f"training.readers={json.dumps(addresses)}"] if addresses else []


def warm_start_overrides(run: str | None, overrides: list[str] | None) -> list[str]:
    """Returns the ``--set`` override that ``--warm-start RUN`` stands for.

    Raises:
        ConfigError: it names no run, or ``--set`` configures a warm start, too.
    """
    from ziggurat.core.errors import ConfigError

    if run is None:
        return []
    if not run.strip():
        raise ConfigError("--warm-start '': names no run", "name a run folder, or leave --warm-start out")
    conflicts = [each for each in overrides or () if f"{each.partition('=')[0].strip()}.".startswith(f"{_WARM_START}.")]
    if conflicts:
        raise ConfigError(
            f"--warm-start {run}: --set {conflicts[0]} also configures the warm start",
            f"leave --warm-start out and add --set {_WARM_START}.run={run}, or leave that --set out",
        )
    return [f"{_WARM_START}.run={json.dumps(run)}"]


def check_warm_start_option(run: str | None, found: WarmStart | None) -> None:
    """Validates that ``--warm-start`` and a warm start in the config are not given together.

    Args:
        run: the value of the option.
        found: the warm start of the config, loaded without the option.

    Raises:
        ConfigError: both are given.
    """
    from ziggurat.core.errors import ConfigError

    if run is not None and found is not None:
        raise ConfigError(
            f"--warm-start {run}: the config's {_WARM_START} names {found.run}",
            f"leave --warm-start out, or use --set {_WARM_START}.run={run} instead",
        )


_WARM_START = "training.warm_start"
