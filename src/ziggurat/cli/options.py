"""Arguments and options that several commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

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
