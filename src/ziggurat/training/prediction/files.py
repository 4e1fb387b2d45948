"""Raw files to the same rows with probabilities."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ziggurat.core.errors import DataError
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.schema import duplicates
from ziggurat.data.readers.blocks import BadRow, RawBlock
from ziggurat.data.readers.quarantine import Policy, Quarantine, output_quarantine
from ziggurat.training.malloc_tuning import keep_freed_memory
from ziggurat.training.prediction.pass_through import PassThrough, open_passage
from ziggurat.training.prediction.predictor import Predictor
from ziggurat.training.prediction.table_output import Output, output_suffix
from ziggurat.training.run import Run


@dataclass(frozen=True, slots=True)
class Predicted:
    """What :func:`predict_files` did.

    Attributes:
        rows: rows written.
        quarantined: rows that could not be read, set aside with their reasons.
        quarantine: the file that holds those; there if there are any.
    """

    rows: int
    quarantined: int
    quarantine: Path


def predict_files(
    run: Run | str | Path,
    files: Sequence[str],
    out: Path,
    checkpoint: str = "best",
    progress: Progress | None = None,
    on_bad_row: Policy | None = None,
) -> Predicted:
    """Score raw files and write their rows, every column kept in its place, with a column ``probability``
    (``probability:LABEL`` for several labels) behind. From text to text, cells come out as the very text that went in;
    from Parquet to Parquet, columns keep their types. A row that cannot be read stops it, or goes to
    ``OUT.quarantine.jsonl`` while the others keep their order. Files without rows give an output without rows.

    Args:
        run: the run or its folder.
        files: paths, folders or globs, of the format in the run's config or of the one that their suffixes name.
        out: ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``; appears whole or not at all, and so does the quarantine.
        checkpoint: ``best``, ``last`` or a step.
        progress: where to show it.
        on_bad_row: ``fail`` or ``quarantine``; None does as the run's own ``data.on_bad_row`` says.

    Raises:
        ConfigError: the suffix of ``out`` names no format.
        DataError: files that cannot be read as declared, a row that cannot be read under ``fail``,
            an output that cannot be written or is one of the files.
    """
    suffix = output_suffix(out)
    quarantine_path = out.with_name(out.name + ".quarantine.jsonl")
    if out.is_dir():
        raise DataError(f"{out}: is a folder", "name a file as the output")
    keep_freed_memory()
    with Predictor(run, checkpoint) as predictor:
        config, needed = predictor.run.experiment.data.source, predictor.transform.raw_schema(labelled=False)
        passage = open_passage(config, files, needed, suffix)
        for path in (out, quarantine_path):
            _check_no_input(path, [file.path for file in passage.files])
        if progress is not None and predictor.note is not None:
            progress.note(predictor.note)
        names = ["probability"] if len(predictor.labels) == 1 else [f"probability:{name}" for name in predictor.labels]
        taken = duplicates([*dict.fromkeys(passage.names), *names])
        if taken:
            raise DataError(
                f"{', '.join(files)}: there is a column {taken[0]!r} already, which predict would add",
                "rename it, or leave it out",
            )
        policy = on_bad_row or predictor.run.experiment.data.on_bad_row
        choice = "predict with --on-bad-row quarantine"
        with output_quarantine(quarantine_path, policy, choice) as quarantine, passage.open(out, names) as output:
            rows = _score(predictor, passage, names, output, quarantine, progress or Silent())
    return Predicted(rows, quarantine.total, quarantine_path)


def _score(
    predictor: Predictor,
    passage: PassThrough,
    names: Sequence[str],
    output: Output,
    quarantine: Quarantine,
    progress: Progress,
) -> int:
    """Write all rows; how many there were."""
    rows = 0
    source = passage.source
    progress.start("predict", source.total_bytes if source else 0, "bytes")
    for block, done in _with_bytes(source.blocks(), [file.size_bytes for file in source.files]) if source else ():
        scored = predictor.score(block)
        refused = np.array([row.line for row in scored.bad], np.int64)
        table, texts = passage.rows.take(block, scored.kept, refused)
        quarantine.add(list(map(_with_text, scored.bad, texts)))
        for name, column_B in zip(names, scored.probabilities_BT.T, strict=True):
            table = table.append_column(name, pa.array(np.ascontiguousarray(column_B)))
        output.write(table)
        rows += table.num_rows
        progress.advance(done)
    progress.finish()
    return rows


def _with_text(row: BadRow, text: str) -> BadRow:
    return dataclasses.replace(row, text=text or row.text)


def _check_no_input(path: Path, inputs: Sequence[Path]) -> None:
    """Refuse to write over a file that is being read, be it through a link."""
    if path.exists() and any(path.samefile(file) for file in inputs):
        raise DataError(
            f"{path}: is one of the files to read, writing would destroy it",
            "choose another output, or name the files so that it is not among them",
        )


def _with_bytes(blocks: Iterator[RawBlock], sizes: list[int]) -> Iterator[tuple[RawBlock, int]]:
    """Each block with the bytes of all files that are read by then."""
    for block in blocks:
        whole = sum(sizes[: block.end.file])
        inside = block.source_bytes if block.end.offset else 0
        yield block, whole + inside
