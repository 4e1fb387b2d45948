"""``ziggurat search``: searches settings, architectures and pipelines that validate better."""

from __future__ import annotations

import typer

from ziggurat.cli.search import architecture, hyperparameters, pipelines

app = typer.Typer(help="Search settings, architectures and pipelines that validate better.", no_args_is_help=True)
app.command("hyperparameters")(hyperparameters.command)
app.command("architecture")(architecture.command)
app.command("pipelines")(pipelines.command)
