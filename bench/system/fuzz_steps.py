"""Takes a log through `init`, `prepare` and the reading and writing of `predict`, in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ziggurat.cli.init import draft_config
from ziggurat.core.errors import ZigguratError
from ziggurat.core.schema import RawSchema
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.reader import RawSource
from ziggurat.data.readers.source import SourceConfig
from ziggurat.data.readers.text.records import RecordRules, Records
from ziggurat.data.readers.text.stored import open_text
from ziggurat.features.preparation.prepare import open_sources, prepare
from ziggurat.features.raw_schema import raw_schema
from ziggurat.training.experiment import Experiment, load_experiment
from ziggurat.training.prediction.pass_through import open_pass_through

OUTPUTS = (".csv", ".tsv", ".jsonl", ".parquet")
_EXPECTED = ("no usable rows", "no training rows", "has only", "only one class", "all labels", "no rows", "one value")
"""Parts of the messages with which `prepare` may refuse what `init` accepted: what no config could change."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a log.

    Attributes:
        stage: how far it came: ``init``, ``prepare`` or ``predict``.
        refused: the message with which it was refused there; empty if it came through.
        faults: what went wrong: a refusal that should not be, counts that do not add up, a lost column.
        rows, quarantined: rows that were prepared and set aside.
    """

    stage: str
    refused: str = ""
    faults: tuple[str, ...] = ()
    rows: int = 0
    quarantined: int = 0


def take(path: Path, folder: Path, label: str | None, columns: Sequence[str] = (), suffix: str = ".csv") -> Taken:
    """Takes a file through the steps; any other error than the package's own is raised.

    Args:
        path: the file.
        folder: an empty folder to work in.
        label: the label to ask for.
        columns: names that the config has to mention.
        suffix: suffix of the output of the prediction.
    """
    try:
        text = draft_config(path, label)
    except ZigguratError as error:
        return Taken("init", str(error))
    faults = [f"init lost column {name!r}" for name in columns if not _mentions(text, name)]
    config = folder / "exp.yaml"
    config.write_text(text, encoding="utf-8")
    try:
        experiment = load_experiment(config, "data.on_bad_row=quarantine")
        prepared = prepare(experiment.data, experiment.features, folder / "prepared")
    except ZigguratError as error:
        unexpected = not any(part in str(error) for part in _EXPECTED)
        return Taken("prepare", str(error), (*faults, *([f"init accepts, prepare refuses: {error}"] * unexpected)))
    manifest = json.loads((prepared / "manifest.json").read_text())
    rows = sum(split["rows"] for split in manifest["splits"].values())
    quarantined = (
        manifest["details"]["quarantined"]["rows"] if "details" in manifest else manifest["quarantined"]["rows"]
    )
    (source,) = (item.source for item in open_sources(experiment.data, experiment.features))
    in_file = _records(source, experiment)
    if in_file is not None and in_file != rows + quarantined:
        faults.append(f"{in_file} records, {rows} rows and {quarantined} quarantined")
    written, refused = _predict(experiment, path, folder / f"scored{suffix}")
    if not refused and written != rows:
        faults.append(f"{rows} rows prepared, {written} rows written to {suffix}")
    shutil.rmtree(folder / "prepared", ignore_errors=True)
    return Taken("predict", refused, tuple(faults), rows, quarantined)


def _mentions(text: str, name: str) -> bool:
    plain = name.strip()
    return not plain or plain in text or json.dumps(plain, ensure_ascii=False)[1:-1] in text


def _records(source: RawSource, experiment: Experiment) -> int | None:
    """Returns the number of records in the files, counted without the parser; None for formats that are not text."""
    config = experiment.data.source
    if not isinstance(config, CsvSource):
        return None
    count = 0
    for file in source.files:
        with open_text(file, 0) as (stream, _):
            data = stream.read(2**26).removeprefix(b"\xef\xbb\xbf")
        lines = data.split(b"\n")
        rules = config.records
        skipped = b"\n".join(lines[rules.skip_lines :])
        records = Records.of(skipped, 1, rules)
        count += len(records) - config.header
    return count


def _predict(experiment: Experiment, path: Path, out: Path) -> tuple[int, str]:
    """Reads the file as a prediction does and writes its rows with a number; returns the rows and a refusal."""
    schema: RawSchema = raw_schema(experiment.data, experiment.features)
    try:
        passing = open_pass_through(experiment.data.source, [str(path)], schema, out.suffix)
        with passing.open(out, ["probability"]) as output:
            for block in passing.source.blocks() if passing.source else ():
                rejected = np.unique(np.array([row.line for row in block.bad], np.int64))
                table, _ = passing.rows.take(block, np.arange(block.table.num_rows), rejected)
                output.write(table.append_column("probability", pa.array(np.zeros(table.num_rows, np.float32))))
        return _written(out, experiment.data.source), ""
    except ZigguratError as error:
        return 0, str(error)


def _written(out: Path, source: SourceConfig) -> int:
    """Returns the number of rows that were written; lines of a file with ordinary quotes pass through as they are."""
    if out.suffix == ".parquet":
        return pq.read_metadata(out).num_rows
    rules = RecordRules(b"\t" if out.suffix == ".tsv" else b",", newlines_in_values=out.suffix != ".jsonl")
    if (
        isinstance(source, CsvSource)
        and source.records.is_written_plainly
        and source.delimiter == rules.delimiter.decode()
    ):
        rules = RecordRules(rules.delimiter, source.newlines_in_values, source.quotes)
    return len(Records.of(out.read_bytes(), 1, rules)) - (out.suffix != ".jsonl")
