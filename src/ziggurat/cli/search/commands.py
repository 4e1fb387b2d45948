"""``ziggurat search``: searches settings and architectures that validate better."""

from __future__ import annotations

import typer

from ziggurat.cli.search import architecture, hyperparameters

app = typer.Typer(help="Search settings and architectures that validate better.", no_args_is_help=True)
app.command("hyperparameters")(hyperparameters.command)
app.command("architecture")(architecture.command)
