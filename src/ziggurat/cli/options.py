"""Arguments and options that several commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ziggurat.training.config import WarmStart

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="The experiment's YAML file.", show_default=False)]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a config key, as in training.epochs=3; may be repeated."),
]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Folder of the raw files; replaces data.folder.")]
PreparedTo = Annotated[
    Path | None, typer.Option("--prepared", help="Folder of the prepared dataset; default: prepared/NAME-HASH.")
]
PreparedAt = Annotated[
    Path | None,
    typer.Option("--prepared", help="Folder of the prepared dataset, if it was moved since the run was trained."),
]
Checkpoint = Annotated[str, typer.Option(help="Which checkpoint: best, last, or a step.")]


def read_from(readers: list[str] | None) -> list[str]:
    """What ``--set`` would say for ``--readers A,B --readers C``.

    Raises:
        ConfigError: one of them names no reader, as an unset variable of a shell does not.
    """
    from ziggurat.core.errors import ConfigError

    addresses: list[str] = []
    for each in readers or ():
        found = [address.strip() for address in each.split(",") if address.strip()]
        if not found:
            raise ConfigError(
                f"--readers {each!r}: names no reader",
                "name those that `ziggurat ingest` told, as grpc://HOST:PORT, or leave --readers out for this process "
                "to make the batches",
            )
        addresses += found
    return [f"training.readers={json.dumps(addresses)}"] if addresses else []


def begun_from(run: str | None, overrides: list[str] | None) -> list[str]:
    """What ``--set`` would say for ``--warm-start RUN``.

    Raises:
        ConfigError: it names no run, or ``--set`` says how to begin as well.
    """
    from ziggurat.core.errors import ConfigError

    if run is None:
        return []
    if not run.strip():
        raise ConfigError("--warm-start '': names no run", "name a run folder, or leave --warm-start out")
    beside = [each for each in overrides or () if f"{each.partition('=')[0].strip()}.".startswith(f"{_WARM_START}.")]
    if beside:
        raise ConfigError(
            f"--warm-start {run}: --set {beside[0]} says how to begin as well",
            f"leave --warm-start out and add --set {_WARM_START}.run={run}, or leave out what is set",
        )
    return [f"{_WARM_START}.run={json.dumps(run)}"]


def check_begun_from(run: str | None, found: WarmStart | None) -> None:
    """Refuse ``--warm-start`` beside a config that says how to begin.

    Args:
        run: of the option.
        found: in the config, without the option.

    Raises:
        ConfigError: both are there.
    """
    from ziggurat.core.errors import ConfigError

    if run is not None and found is not None:
        raise ConfigError(
            f"--warm-start {run}: the config's {_WARM_START} names {found.run}",
            f"leave --warm-start out, or say --set {_WARM_START}.run={run} in its place",
        )


_WARM_START = "training.warm_start"
