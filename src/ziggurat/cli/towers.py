"""``ziggurat towers``: learns which features share a tower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ziggurat.cli.options import Config, DataFolder, Overrides, PreparedOutput


def command(
    config: Config,
    towers: Annotated[int, typer.Option("--towers", min=1, help="Number of towers.", show_default=False)],
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="A run of the flat model; default: train it in runs/NAME."),
    ] = None,
    overrides: Overrides = None,
    data: DataFolder = None,
    prepared: PreparedOutput = None,
    diverse: Annotated[
        bool, typer.Option("--diverse", help="Put together the features that interact least, not most.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seeds the search for towers.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The config's file; an .html page is written next to it; default: CONFIG-towers.yaml."
        ),
    ] = None,
) -> None:
    """Divide the features among towers by how they interact in the trained flat model, which it trains if needed.

    \b
    Examples:
      ziggurat towers exp.yaml --towers 4
      ziggurat towers exp.yaml --towers 8 --from runs/exp
      ziggurat towers exp.yaml --towers 4 --diverse -o diverse.yaml
    """
    from rich.console import Console

    from ziggurat.cli.figures import WIDTH, print_rows
    from ziggurat.cli.progress import console_progress
    from ziggurat.core.files import make_folder_of
    from ziggurat.report.towers.page import summary, tower_rows, write_partition
    from ziggurat.training import api
    from ziggurat.training.partitioning.commented_config import write_with_towers

    target = Path(f"{config.stem}-towers.yaml") if out is None else out
    page = _page_path(config, target)
    # The flat model needs no towers, nor does a config whose towers are to be found.
    experiment = api.load_experiment(config, [*(overrides or []), "parallel.embeddings={name: flat}"], data)
    make_folder_of(target)
    with console_progress() as progress:
        made = api.partition_towers(
            experiment, towers, run=source, diverse=diverse, seed=seed, prepared=prepared, progress=progress
        )
    if made.partition is None:
        why = "stopped" if made.signal is None else f"stopped by {made.signal.name}"
        typer.echo(f"{why}; the flat model is saved in {made.run.folder}. Run the same command to resume.", err=True)
        raise typer.Exit(1 if made.signal is None else 128 + made.signal)
    found = made.partition
    console = Console(width=max(Console().width, WIDTH))
    console.print(
        f"{experiment.name}: {len(found.features)} features in {len(found.towers)} towers, from {made.run.folder}\n",
        highlight=False, soft_wrap=True, markup=False,
    )  # fmt: skip
    print_rows(console, ["tower", "features", "count", "load", "share"], tower_rows(found), 2)
    console.print(f"\n{summary(found)}", highlight=False, soft_wrap=True, markup=False)
    options = f"--towers {towers}{' --diverse' if diverse else ''}{f' --seed {seed}' if seed else ''}"
    comment = f"Found by `ziggurat towers {options}` from {made.run.folder}.\n{summary(found)}"
    write_with_towers(target, config, found.towers, comment, overrides or [], data)
    write_partition(page, experiment.name, found, made.run.folder)
    typer.echo(f"{target} {page}")


def _page_path(config: Path, target: Path) -> Path:
    """Returns the path of the HTML page next to the config's file, and checks that both can be written."""
    from ziggurat.core.errors import ConfigError
    from ziggurat.core.files import check_file_target

    check_file_target(target)
    page = target.with_suffix(".html")
    if page == target:
        raise ConfigError(
            f"--out {target}: is the name of the HTML page", f"name the config: --out {target.with_suffix('.yaml')}"
        )
    if config.resolve() in (target.resolve(), page.resolve()):
        raise ConfigError(f"--out {target}: would overwrite the config", "name another file")
    check_file_target(page)
    return page
