"""``ziggurat init``: infers a commented experiment from logs; it can be trained without changes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ziggurat.training.experiment import Experiment


def command(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILES", help="Files, folders, patterns or URLs of one log.", show_default=False),
    ],
    label: Annotated[str | None, typer.Option(help="The label's column; default: inferred.")] = None,
    table: Annotated[str | None, typer.Option(help="The table of a database; default: the only one.")] = None,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write to this file instead of the terminal.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the experiment; default: derived from the files.")] = None,
    schema: Annotated[
        Path | None, typer.Option(help="JSON Schema file that editors use, from `ziggurat schema`.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output file.")] = False,
) -> None:
    """Infer a commented config from logs: types, labels, bags, time, split, encoders.

    \b
    Examples:
      ziggurat init clicks.csv --out exp.yaml
      ziggurat init 'logs/*.parquet' --label bought --out exp.yaml
      ziggurat init shop.sqlite --table events --out exp.yaml
      ziggurat init s3://bucket/logs/ --out exp.yaml
    """
    from ziggurat.core.errors import ConfigError
    from ziggurat.core.files import atomic_file

    if output is not None and output.exists() and not force:
        raise ConfigError(f"{output} exists", "choose another --out, or --force to replace it")
    text = draft_config(files, label, name=name, schema=schema, table=table)
    if output is None:
        typer.echo(text, nl=False)
        return
    with atomic_file(output) as temporary:
        temporary.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {output}; next: ziggurat train {output}", err=True)


_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000|\0")
"""A NUL character, also as YAML writes it in quotes."""


def init(rows: Any, label: str | None = None, *, name: str | None = None, out: str | Path | None = None) -> Experiment:
    """Infers an experiment from rows in memory, or from files; it can be trained without changes.

    Args:
        rows: a polars or pandas DataFrame, a pyarrow Table, a Hugging Face dataset, a dictionary of columns, a list of
            dictionaries, or anything with the Arrow C stream interface; or files, as :func:`draft_config` takes them.
        label: the label's column; by default inferred from names and values.
        name: the name of the experiment.
        out: a file for the commented YAML, which gives the reasons.

    Raises:
        DataError, ConfigError: no table can be made of the rows, or no column could be the label.
    """
    from ziggurat.core.files import atomic_file
    from ziggurat.training.experiment import parse_experiment

    text = draft_config(rows, label, name=name)
    if out is not None:
        with atomic_file(Path(out)) as temporary:
            temporary.write_text(text, encoding="utf-8")
    experiment = parse_experiment(text.encode(), Path(out or "the inferred config"))
    experiment.check()
    return experiment


def draft_config(
    files: Any,
    label: str | None = None,
    *,
    name: str | None = None,
    schema: str | Path | None = None,
    table: str | None = None,
) -> str:
    """Returns the commented YAML of an experiment that can be trained on these logs without changes.

    Args:
        files: a file, folder, pattern or URL, or several of one log; or rows in memory, as :func:`init` takes them.
        label: the label's column; by default inferred from names and values.
        name: the name of the experiment; by default derived from the files.
        schema: JSON Schema file for editors, to which the YAML then refers.
        table: the table of a database; by default the only one.

    Raises:
        DataError, ConfigError: the files do not exist, their format is unknown, or no column could be the label.
    """
    from ziggurat.cli.drafts.files import common_folder
    from ziggurat.cli.drafts.text import render
    from ziggurat.core.errors import DataError
    from ziggurat.data.inference.roles import infer
    from ziggurat.data.inference.sample import SUFFIXES, is_sidecar, sample_table
    from ziggurat.data.readers.frame.reader import Frame
    from ziggurat.data.readers.frame.table import is_records
    from ziggurat.data.readers.source_files import resolve_files

    if is_records(files) or not isinstance(files, str | PurePath | list | tuple):
        frame = Frame.of(files)
        if label is not None:
            frame.check([label])
        sample = sample_table(frame.table)
        refused = {name: f"{each.problem}: {each.hint}" for name, each in frame.refused.items()}
        inferred = infer([frame.file], label, replace(sample, left_out={**sample.left_out, **refused}))
        return render(inferred, name or "frame", Path(), str(schema) if schema else None)
    named = [files] if isinstance(files, str | PurePath) else files
    found = resolve_files([str(file) for file in named], Path(), [*SUFFIXES, ".txt", ".tab", ".data"])
    found = [file for file in found if not is_sidecar(file.path)]
    inferred = infer(found, label, table=table)
    name = name or experiment_name(inferred.files["train"][0].path)
    text = render(inferred, name, common_folder(found), str(schema) if schema else None)
    if _NUL.search(text):
        raise DataError(
            f"{found[0].path}: a name or a value that the config would hold has a NUL character",
            "check that it is a text file of records; or remove these characters",
        )
    return text


def experiment_name(path: PurePath) -> str:
    """Derives a name from the file's, or from its folder's if the file has a generic name such as train or data."""
    generic = {"train", "training", "data", "log", "logs", "part", "file"}
    stem = path.name.partition(".")[0]
    whole = path.absolute() if isinstance(path, Path) else path
    folder = next((parent.name for parent in whole.parents if "=" not in parent.name), "")
    if re.sub(r"[\W\d_]", "", stem.lower()) in generic and folder:
        stem = folder
    cleaned = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    return re.sub(r"-(train|training)$", "", cleaned) or "experiment"
