"""``ziggurat scale``: trains growing sizes of a model, and fits the power law between compute and loss."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ziggurat.cli.options import DataFolder, Overrides, PreparedOutput

if TYPE_CHECKING:
    from ziggurat.training.scaling.result import ScaleResult


class SplitName(StrEnum):
    """The splits that a law can be fitted on."""

    TEST = "test"
    VALIDATION = "validation"


def command(
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="CONFIG", help="The experiment; with --compare, folders of sweeps.", show_default=False),
    ],
    overrides: Overrides = None,
    data: DataFolder = None,
    prepared: PreparedOutput = None,
    run: Annotated[Path | None, typer.Option(help="Folder of the sweep; default: runs/NAME-scale.")] = None,
    sizes: Annotated[
        int, typer.Option("--sizes", "--rungs", min=1, help="Number of model sizes; a law needs three or more.")
    ] = 5,
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs of each size.")] = 2,
    split: Annotated[SplitName, typer.Option(help="The split whose log-loss the law is fitted to.")] = SplitName.TEST,
    sizes_file: Annotated[
        Path | None,
        typer.Option("--sizes-file", "--ladder", help="YAML list with the config keys of each size; replaces --sizes."),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Draw finished sweeps on one page.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The HTML file; default: scale.html.")] = None,
) -> None:
    """Train growing sizes of a model and fit the power law between compute and log-loss. It resumes like train.

    \b
    Examples:
      ziggurat scale exp.yaml --sizes 6 --seeds 3
      ziggurat scale exp.yaml --sizes-file sizes.yaml --run runs/sizes
      ziggurat scale --compare runs/wukong runs/dlrm -o both.html
    """
    from ziggurat.core.errors import ConfigError
    from ziggurat.core.files import make_folder_of
    from ziggurat.training.scaling.result import ScaleResult

    if compare:
        path = out or Path("scale.html")
        make_folder_of(path)
        _draw(path, [ScaleResult.load(folder) for folder in inputs], inputs)
        return
    if len(inputs) > 1:
        received = " ".join(map(str, inputs))
        raise ConfigError(f"scale takes one config, received {received}", "to draw finished sweeps, add --compare")
    from ziggurat.cli.progress import console_progress
    from ziggurat.training.experiment import load_experiment
    from ziggurat.training.scaling.sweep import scale

    experiment = load_experiment(inputs[0], overrides or [], data)
    if out is not None:
        make_folder_of(out)
    with console_progress() as progress:
        scaled = scale(
            experiment, run, sizes=sizes, seeds=seeds, split=split.value, sizes_file=sizes_file, prepared=prepared,
            progress=progress,
        )  # fmt: skip
    if scaled.signal is not None:
        finished = scaled.result.finished_runs
        stopped = f"stopped by {scaled.signal.name}; {finished} of {finished + scaled.missing} runs finished"
        typer.echo(f"{stopped}, the state of the others is saved. Run the same command to resume.", err=True)
        raise typer.Exit(128 + scaled.signal)
    _draw(out or scaled.folder / "scale.html", [scaled.result], [scaled.folder])


def _draw(path: Path, results: list[ScaleResult], folders: list[Path]) -> None:
    from ziggurat.report.scaling.page import write_scale
    from ziggurat.report.scaling.titles import labels

    laws = write_scale(path, results, folders)
    for label, result, fit in zip(labels(results, folders), results, laws, strict=True):
        typer.echo(f"{label}: {'too few sizes for a law' if fit is None else fit.verdict}")
        for caveat in result.caveats:
            typer.echo(f"{label}: {caveat}")
    typer.echo(path)
