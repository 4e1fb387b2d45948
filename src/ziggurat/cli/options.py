"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path, typer.Argument(help="The experiment's YAML file.", show_default=False)]
RunFolder = Annotated[Path, typer.Argument(help="The run folder.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a config key, as in training.batch_size=8192."),
]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Folder of the raw files; replaces data.folder.")]
Checkpoint = Annotated[str, typer.Option(help="Which checkpoint: best, last, or a step.")]
