"""``ziggurat export``: writes a run or an ensemble as a folder that serving reads."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ziggurat.cli.options import Checkpoint, PreparedInput, RunOrEnsemble

if TYPE_CHECKING:
    from ziggurat.exporting.export import Exported


class Format(enum.Enum):
    """What is written."""

    ziggurat = "ziggurat"
    onnx = "onnx"


class Precision(enum.Enum):
    """How the rows of tables are stored."""

    fp32 = "fp32"
    fp16 = "fp16"
    int8 = "int8"
    int4 = "int4"


def command(
    run: RunOrEnsemble,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The new folder of the export.", show_default=False)],
    precision: Annotated[
        Precision, typer.Option(help="How rows are stored; fp32 predicts to the bit what the run predicts.")
    ] = Precision.fp32,
    file_format: Annotated[
        Format, typer.Option("--format", help="A folder to serve, or an ONNX model from ids to predictions.")
    ] = Format.ziggurat,
    checkpoint: Checkpoint = "best",
    prepared: PreparedInput = None,
    item_columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="The raw columns that describe an item, not the user or the context; default: guessed.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a run or an ensemble as one folder: its encoders, its tables and its dense part.

    The export predicts rows of the validation split with what it wrote and compares them with the run's predictions: at
    fp32 they are equal to the bit, otherwise the difference is stated.

    \b
    Examples:
      ziggurat export runs/shop exports/shop
      ziggurat export runs/shop exports/small --precision int8
      ziggurat export runs/shop exports/onnx --format onnx
    """
    from ziggurat.cli.progress import console_progress
    from ziggurat.exporting.export import export

    if file_format is Format.onnx:
        _export_onnx(run, out, precision, checkpoint, prepared, item_columns)
        return
    columns = None if item_columns is None else [each.strip() for each in item_columns.split(",") if each.strip()]
    with console_progress() as progress:
        exported = export(
            run,
            out,
            precision=precision.value,
            checkpoint=checkpoint,
            prepared=prepared,
            item_columns=columns,
            progress=progress,
        )
    _print(exported)


def _export_onnx(
    run: Path, out: Path, precision: Precision, checkpoint: str, prepared: Path | None, item_columns: str | None
) -> None:
    from ziggurat.cli.printed.checkpoint_tables import print_lines
    from ziggurat.cli.progress import console_progress
    from ziggurat.core.errors import ConfigError
    from ziggurat.exporting.onnx.write import export_onnx
    from ziggurat.planning.quantities import format_bytes

    if precision is not Precision.fp32:
        raise ConfigError(
            f"--precision {precision.value}: the format onnx has its tables in fp32", "leave --precision out"
        )
    if item_columns is not None:
        raise ConfigError("--item-columns: the format onnx takes ids, not columns of a log", "leave --item-columns out")
    with console_progress() as progress:
        found = export_onnx(run, out, checkpoint=checkpoint, prepared=prepared, progress=progress)
    largest = f"{found.largest_difference:.1g}"
    print_lines(
        [
            f"{found.folder}: {format_bytes(found.bytes)}: model.onnx, inputs.json, encoders/",
            f"{found.sample_rows:,} rows predicted by ONNX Runtime differ from the run's by at most {largest}",
        ]
    )


def _print(exported: Exported) -> None:
    from ziggurat.cli.printed.checkpoint_tables import print_lines, print_table
    from ziggurat.planning.quantities import format_bytes

    manifest = exported.manifest
    rows = [
        [
            f"tables/{entry.file}",
            f"table {entry.name}: {entry.rows:,} rows of {entry.dim}, {manifest.precision}",
            format_bytes(entry.layout(manifest.precision).bytes),
        ]
        for entry in manifest.tables
    ]
    others = {name: each.bytes for name, each in manifest.files.items() if not name.startswith("tables/")}
    encoders = sum(size for name, size in others.items() if name.startswith("encoders/"))
    rows.append(["encoders/", "how raw rows become ids and numbers", format_bytes(encoders)])
    rows += [
        [name, _WHAT.get(name, ""), format_bytes(size)]
        for name, size in others.items()
        if not name.startswith("encoders/")
    ]
    print_table(["file", "what it holds", "bytes"], rows)
    smaller = f", {exported.table_bytes / exported.fp32_bytes:.0%} of fp32" if manifest.precision != "fp32" else ""
    lines = [f"{exported.folder}: {format_bytes(exported.bytes)}, tables {format_bytes(exported.table_bytes)}{smaller}"]
    deviation = dict(manifest.deviation)
    sample = int(deviation.pop("sample_rows"))
    largest = deviation.pop("largest_logit_difference")
    if manifest.precision == "fp32":
        lines.append(f"{sample:,} rows predicted both ways: equal to the bit")
    else:
        lines.append(f"{sample:,} rows predicted both ways: outputs differ by at most {largest:.2g}")
        lines += [f"{name}: {change:+.2g}" for name, change in deviation.items()]
    user = ", ".join(manifest.user_columns) or "none"
    lines.append(f"columns of the user or the context: {user}; --item-columns names the others")
    lines += [f"note: {note}" for note in exported.notes]
    print_lines(["", *lines])


_WHAT = {
    "dense.json": "the dense part as a graph",
    "dense.safetensors": "its weights",
    "sample.json": "some rows of the log, as examples",
    "reference.json": "how the validation scores, which a server compares with",
    "statistics.safetensors": "how often each row of each table is looked up",
}
