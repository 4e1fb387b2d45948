"""``ziggurat generate``: writes a synthetic log of any size whose structure is known."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


class ShapeName(StrEnum):
    """The predefined shapes of :mod:`ziggurat.data.synthetic.shapes`."""

    DEMO = "demo"
    CRITEO = "criteo"
    GROUPS = "groups"


class FormatName(StrEnum):
    """The formats in which a log can be written."""

    CSV = "csv"
    PARQUET = "parquet"
    JSONL = "jsonl"


def command(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The file to write; STEM.truth.json is written next to it.")
    ],
    rows: Annotated[int, typer.Option(min=1, help="Number of rows.")] = 100_000,
    shape: Annotated[
        ShapeName,
        typer.Option(help="criteo: 13 numbers, 26 categories; demo: a shop's log; groups: 24 categories in 4 groups."),
    ] = ShapeName.DEMO,
    seed: Annotated[int, typer.Option(min=0, help="Random seed; the same seed gives the same bytes.")] = 0,
    format: Annotated[FormatName | None, typer.Option(help="Default: by OUT's suffix, else CSV.")] = None,  # noqa: A002
    delimiter: Annotated[str | None, typer.Option(help="Delimiter between CSV cells; \\t is a tab.")] = None,
    header: Annotated[bool | None, typer.Option(help="Whether CSV starts with column names.")] = None,
    threads: Annotated[int, typer.Option(min=0, help="0: one for each core, up to four.")] = 0,
) -> None:
    """Write a synthetic log whose best possible AUC and log-loss are known.

    \b
    Examples:
      ziggurat generate shop.csv
      ziggurat generate ads.parquet --shape criteo --rows 10000000
    """
    from ziggurat.cli.progress import console_progress
    from ziggurat.core.config import parse_config
    from ziggurat.core.files import check_file_target
    from ziggurat.data.synthetic.config import GeneratorConfig
    from ziggurat.data.synthetic.generate import generate, truth_file
    from ziggurat.data.synthetic.shapes import SHAPES

    check_file_target(out)
    settings: dict[str, Any] = SHAPES[shape.value](rows, seed).model_dump()
    settings["format"] = (format or _format_of(out)).value
    if delimiter is not None:
        settings["delimiter"] = delimiter.replace("\\t", "\t")
    elif out.suffix == ".tsv":
        settings["delimiter"] = "\t"
    if header is not None:
        settings["header"] = header
    config = parse_config(GeneratorConfig, settings, "ziggurat generate")
    with console_progress() as progress:
        truth = generate(config, out, progress, threads)
    typer.echo(f"wrote {out} and {truth_file(out).name}")
    for name, label in truth["labels"].items():
        typer.echo(
            f"  {name}: {label['rate']:.1%} ones; the best possible model has AUC {label['bayes_auc']:.4f}, "
            f"log-loss {label['bayes_log_loss']:.4f}, NE {label['bayes_normalised_entropy']:.4f}"
        )


def _format_of(out: Path) -> FormatName:
    match out.suffix:
        case ".parquet":
            return FormatName.PARQUET
        case ".jsonl" | ".ndjson" | ".json":
            return FormatName.JSONL
        case _:
            return FormatName.CSV
