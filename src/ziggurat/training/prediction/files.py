"""Predicts raw files, and writes their rows with the predictions."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.errors import DataError, unknown_name
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.schema import duplicates
from ziggurat.data.readers.advice import advice_for_prediction, form_of_files
from ziggurat.data.readers.blocks import BadRow, RawBlock
from ziggurat.data.readers.quarantine import Policy, Quarantine, output_quarantine
from ziggurat.objectives.losses import Quantile
from ziggurat.objectives.task import Task
from ziggurat.training.ensemble.ensemble import Ensemble
from ziggurat.training.malloc_tuning import keep_freed_memory
from ziggurat.training.prediction.pass_through import PassThrough, open_pass_through
from ziggurat.training.prediction.predictor import Predictor, ScoredBlock
from ziggurat.training.prediction.table_output import Output, output_suffix
from ziggurat.training.run_folder.run import Run


@dataclass(frozen=True, slots=True)
class Predicted:
    """The result of :func:`predict_files`.

    Attributes:
        rows: number of rows written.
        quarantined: number of rows that could not be read.
        quarantine: file with these rows and the reasons; it exists if there are any.
    """

    rows: int
    quarantined: int
    quarantine: Path


def predict_files(
    run: Run | Ensemble | str | Path,
    files: str | Path | Sequence[str | Path],
    out: str | Path,
    checkpoint: str = "best",
    progress: Progress | None = None,
    on_bad_row: Policy | None = None,
    *,
    levels: bool = False,
) -> Predicted:
    """Predicts raw files and writes their rows, with all columns in order, followed by a column ``probability``.

    For a label that is a number the column is ``prediction``, in the label's units; a quantile label also has a column
    ``prediction:LEVEL`` for each level. With several labels there is a column ``probability:LABEL`` or
    ``prediction:LABEL`` for each. From text to text, the text of cells is
    copied; from Parquet to Parquet, columns keep their types. A row that cannot be read stops the prediction, or goes
    to ``OUT.quarantine.jsonl`` while the others keep their order. Files without rows give an output without rows.

    Args:
        run: the run or the ensemble, or its folder.
        files: a path, folder or pattern, or several, in the format of the run's config or in that of their suffixes.
        out: the output, ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``. The output and the quarantine appear when they
            are complete, or not at all.
        checkpoint: ``best``, ``last`` or a step of a run; an ensemble has its own.
        progress: where to show progress.
        on_bad_row: ``fail`` or ``quarantine``; default: the run's own ``data.on_bad_row``.
        levels: also write the probability of each level of ordinal labels, as ``probability:LEVEL``.

    Raises:
        ConfigError: the suffix of ``out`` names no format, or ``on_bad_row`` is another word.
        DataError: a file cannot be read as declared, a row cannot be read under ``fail``, or the output cannot be
            written or is one of the files.
    """
    out = Path(out)
    inputs = [str(each) for each in ([files] if isinstance(files, str | Path) else files)]
    if on_bad_row is not None and on_bad_row not in get_args(Policy):
        raise unknown_name("policy for bad rows", on_bad_row, get_args(Policy))
    suffix = output_suffix(out)
    quarantine_path = out.with_name(out.name + ".quarantine.jsonl")
    if out.is_dir():
        raise DataError(f"{out}: is a folder", "name a file as the output")
    keep_freed_memory()
    with Predictor(run, checkpoint) as predictor:
        config, needed = predictor.run.experiment.data.source, predictor.transform.raw_schema(labelled=False)
        advice = partial(advice_for_prediction, partial(form_of_files, config, inputs))
        with advice():
            pass_through = open_pass_through(config, inputs, needed, suffix)
        for path in (out, quarantine_path):
            _check_not_an_input(path, [file.on_disk for file in pass_through.files if file.remote is None])
        if progress is not None and predictor.note is not None:
            progress.note(predictor.note)
        names = column_names(predictor.tasks, levels)
        clashing = duplicates([*dict.fromkeys(pass_through.names), *names])
        if clashing:
            raise DataError(
                f"{', '.join(inputs)}: there is a column {clashing[0]!r} already, which predict would add",
                "rename it, or leave it out",
            )
        policy = on_bad_row or predictor.run.experiment.data.on_bad_row
        alternative = "predict with --on-bad-row quarantine"
        with (
            output_quarantine(quarantine_path, policy, alternative) as quarantine,
            pass_through.open(out, names) as output,
            advice(),
        ):
            rows = _score(predictor, pass_through, names, output, quarantine, progress or Silent(), levels)
    return Predicted(rows, quarantine.total, quarantine_path)


def column_names(tasks: Sequence[Task], levels: bool = False) -> list[str]:
    """Returns the names of the columns that are written for these labels, ``levels`` with those of ordinal levels."""
    names: list[str] = []
    for task in tasks:
        label = f":{task.name}" if len(tasks) > 1 else ""
        names.append(f"{'probability' if task.is_probability else 'prediction'}{label}")
        if isinstance(task.loss, Quantile):
            names += [f"prediction{label}:{level:g}" for level in task.loss.levels]
        if levels and task.kind == "ordinal":
            names += [f"probability{label}:{level:g}" for level in task.levels]
    return names


def _columns(tasks: Sequence[Task], scored: ScoredBlock, levels: bool) -> Iterator[npt.NDArray[np.float32]]:
    """Yields the columns that :func:`column_names` names."""
    for number, task in enumerate(tasks):
        yield scored.predictions_BT[:, number]
        if isinstance(task.loss, Quantile) or (levels and task.kind == "ordinal"):
            yield from scored.further[task.name].values()


def _score(
    predictor: Predictor,
    pass_through: PassThrough,
    names: Sequence[str],
    output: Output,
    quarantine: Quarantine,
    progress: Progress,
    levels: bool,
) -> int:
    """Writes all rows and returns their number."""
    rows = 0
    source = pass_through.source
    progress.start("predict", source.total_bytes if source else 0, "bytes")
    sizes = [file.size_bytes for file in source.files] if source else []
    with contextlib.closing(predictor.score_blocks(source.blocks() if source else iter(()))) as blocks:
        for block, scored in blocks:
            rejected = np.array([row.line for row in scored.bad], np.int64)
            table, texts = pass_through.rows.take(block, scored.kept, rejected)
            quarantine.add(list(map(_with_text, scored.bad, texts)))
            for name, column_B in zip(names, _columns(predictor.tasks, scored, levels), strict=True):
                table = table.append_column(name, pa.array(np.ascontiguousarray(column_B)))
            output.write(table)
            rows += table.num_rows
            progress.advance(_bytes_read(block, sizes))
    progress.finish()
    return rows


def _with_text(row: BadRow, text: str) -> BadRow:
    return dataclasses.replace(row, text=text or row.text)


def _check_not_an_input(path: Path, inputs: Sequence[Path]) -> None:
    """Refuses to overwrite a file that is being read, also through a link."""
    if path.exists() and any(path.samefile(file) for file in inputs):
        raise DataError(
            f"{path}: is one of the files to read, writing would destroy it",
            "choose another output, or name the files so that it is not among them",
        )


def _bytes_read(block: RawBlock, sizes: Sequence[int]) -> int:
    """Returns the number of bytes of all files, of these sizes, that are read up to the end of a block."""
    complete_files = sum(sizes[: block.end.file])
    return complete_files + (block.source_bytes if block.end.offset else 0)
