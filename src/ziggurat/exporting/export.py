"""Exports a run: its encoders, its dense part as a graph, its tables at a chosen precision.

The export ends by predicting with what it wrote. At ``fp32`` the predictions of sample rows must equal the run's to the
bit; at other precisions the difference is stated, with what it does to the NE of the validation split.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ziggurat._version import __version__
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.core.files import atomic_folder
from ziggurat.core.progress import Progress, Silent
from ziggurat.data.encoded.columns import Columns
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.embeddings.layout import Layout
from ziggurat.exporting.exported_model import ExportedModel
from ziggurat.serving.artefact.dense_program import PROGRAM_FILE, TENSORS_FILE, program_files
from ziggurat.serving.artefact.manifest import TABLES, TRANSFORM, Manifest, Side, Source, StoredFile, TableEntry
from ziggurat.serving.artefact.row_codec import PRECISIONS, Precision, encode
from ziggurat.serving.model.scorer import Scorer
from ziggurat.training.evaluate import evaluate_split
from ziggurat.training.prediction.predictor import Predictor
from ziggurat.training.recommender import DensePart, Recommender
from ziggurat.training.run_folder.run import Run, open_run

_CHUNK_ROWS = 1 << 16
_SAMPLE_ROWS = 1_000
_MOST_ROWS = 1 << 24
"""Most rows of a request that the graph takes."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote.

    Attributes:
        folder: the export.
        manifest: its manifest.
        bytes: the size of all files.
        table_bytes: the size of the tables' files.
        fp32_bytes: the size of the tables in fp32.
    """

    folder: Path
    manifest: Manifest
    bytes: int
    table_bytes: int
    fp32_bytes: int


def export(
    run: Run | str | Path,
    out: str | Path,
    *,
    precision: Precision = "fp32",
    checkpoint: str = "best",
    prepared: str | Path | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Exports a run into a new folder.

    Args:
        run: the run or its folder.
        out: the folder of the export, which must not exist.
        precision: how the rows of tables are stored: ``fp32``, ``fp16``, ``int8`` or ``int4``.
        checkpoint: ``best``, ``last`` or a step.
        prepared: folder of the encoded dataset, if it has moved since the run was trained; its validation rows are
            predicted both ways.
        progress: where to show progress.

    Raises:
        ConfigError: the folder exists, the precision is unknown or cannot hold a row, or tables are on disk.
        RunFolderError: there is no such run or checkpoint.
        DataError: the prepared dataset does not exist, or the export predicts otherwise than the run.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision: received {precision!r}", f"choose one of {', '.join(PRECISIONS)}")
    out, progress = Path(out), progress or Silent()
    if out.exists():
        raise ConfigError(f"{out} exists", "name a new folder, or delete this one")
    opened = run if isinstance(run, Run) else open_run(run)
    dataset = opened.dataset(prepared)
    with Predictor(opened, checkpoint) as predictor, atomic_folder(out) as folder:
        recommender = predictor.recommender
        assert isinstance(recommender, Recommender)
        manifest = _write(folder, opened, predictor, recommender, checkpoint, precision, progress)
        manifest.write(folder)
        deviation = _compared(Scorer.open(folder), recommender, dataset, opened, precision, progress)
        manifest = replace(manifest, deviation=deviation)
        manifest.write(folder)
    sizes = {name: each.bytes for name, each in manifest.files.items()}
    table_bytes = sum(size for name, size in sizes.items() if name.startswith(f"{TABLES}/"))
    fp32 = sum(4 * table.rows * table.dim for table in manifest.tables)
    return Exported(out, manifest, sum(sizes.values()), table_bytes, fp32)


def _write(
    folder: Path,
    run: Run,
    predictor: Predictor,
    recommender: Recommender,
    checkpoint: str,
    precision: Precision,
    progress: Progress,
) -> Manifest:
    """Writes all files but the manifest."""
    layout = recommender.lookup.layout
    (folder / TRANSFORM).mkdir()
    predictor.transform.save(folder / TRANSFORM)
    (folder / TABLES).mkdir()
    entries = tuple(_entries(layout))
    weights = recommender.lookup.weights()
    progress.start("export", sum(entry.rows for entry in entries), "rows")
    done = 0
    for entry in entries:
        if entry.name not in weights or weights[entry.name].is_meta:
            raise ConfigError(
                f"table {entry.name!r}: its rows are not all in memory, which an export of this version needs",
                "export on a machine whose memory holds the tables, with planning: {name: rules}",
            )
        rows = weights[entry.name].detach()
        packed = entry.layout(precision)
        step = max(packed.per_block, _CHUNK_ROWS // packed.per_block * packed.per_block)
        with (folder / TABLES / entry.file).open("wb") as file:
            for start in range(0, entry.rows, step):
                part = rows[start : start + step].float().cpu().numpy()
                packed.write(file, encode(part, precision, f"table {entry.name!r}, rows from {start:,}"))
                done += len(part)
                progress.advance(done)
    inputs = layout.schema.sparse
    graph, tensors = _program(recommender, layout, inputs)
    (folder / PROGRAM_FILE).write_bytes(graph)
    save_file(tensors, folder / TENSORS_FILE)
    progress.finish()
    step = run.checkpoints.find(checkpoint)
    results = run.results or {}
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return Manifest(
        source=Source(run.experiment.name, run.files.run_id, step, __version__, torch.__version__),
        precision=precision,
        batch_size=run.experiment.evaluation.batch_size,
        tasks=tuple(predictor.tasks),
        dense=layout.schema.dense,
        inputs=inputs,
        tables=entries,
        user_columns=(),
        figures=_figures(results.get("figures", {}) if results.get("best_step") == step else {}),
        deviation={},
        files={name: StoredFile.of(folder / name) for name in names},
    )


def _entries(layout: Layout) -> Iterator[TableEntry]:
    side: Side = "item"
    for number, spec in enumerate(layout.tables):
        file = f"{number:04d}.rows"
        features, positions = spec.features, dict(spec.positions)
        yield TableEntry(spec.name, spec.rows, spec.dim, file, spec.pooling, features, positions, side)


class _Graph(nn.Module):
    """The dense part with its columns alone."""

    def __init__(self, part: DensePart) -> None:
        super().__init__()
        self.part = part

    def forward(self, dense_BF: Tensor, rows: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Tensor:
        return self.part(dense_BF, rows, masks)[0]


def _program(recommender: Recommender, layout: Layout, inputs: tuple[str, ...]) -> tuple[bytes, dict[str, Tensor]]:
    size, table_of = 3, layout.table_of
    rows, masks = dict[str, Tensor](), dict[str, Tensor]()
    for name in inputs:
        how = layout.positions.get(name)
        shape = (size, table_of[name].dim) if how is None else (size, how.count, table_of[name].dim)
        rows[name] = torch.zeros(shape)
        if how is not None:
            masks[name] = torch.ones(size, how.count, dtype=torch.bool)
    dense = torch.zeros(size, len(layout.schema.dense))
    rows_of = {0: torch.export.Dim("B", min=2, max=_MOST_ROWS)}
    sizes = (rows_of, dict.fromkeys(rows, rows_of), dict.fromkeys(masks, rows_of))
    return program_files(_Graph(recommender.part).eval(), (dense, rows, masks), sizes)


def _compared(
    scorer: Scorer, recommender: Recommender, dataset: Dataset, run: Run, precision: Precision, progress: Progress
) -> dict[str, float]:
    """Returns how far predictions of the export differ from the run's.

    Raises:
        DataError: they differ at ``fp32``.
    """
    exported = ExportedModel(scorer, recommender)
    split = "validation" if dataset.split("validation").rows else "train"
    blocks = dataset.split(split)
    sample = Columns([blocks.read(0)], dataset.schema, labelled=False)
    batch = sample.batch(np.arange(min(_SAMPLE_ROWS, sample.rows)))
    with torch.no_grad():
        theirs, ours = recommender(batch)[0], exported(batch)[0]
    difference = float((theirs - ours).abs().max())
    if precision == "fp32":
        if not torch.equal(theirs, ours):
            row = int((theirs != ours).any(1).nonzero()[0])
            raise DataError(
                f"the export predicts otherwise than the run: row {row + 1} of the {split} rows, by {difference:g}",
                "report it: at fp32 they must be equal to the bit",
            )
        return {"sample_rows": float(len(theirs)), "largest_logit_difference": 0.0}
    figures: list[dict[str, float]] = []
    for model in (recommender, exported):
        found = evaluate_split(
            model, blocks, dataset.schema, torch.device("cpu"), run.experiment.evaluation.batch_size, (), progress
        )
        figures.append(found.compute())
    changes = {
        f"{split}/{name}": figures[1][name] - value
        for name, value in figures[0].items()
        if name.rpartition("/")[2] in {"ne", "auc", "log_loss", "rmse"} and math.isfinite(value)
    }
    return {"sample_rows": float(len(theirs)), "largest_logit_difference": difference, **changes}


def _figures(found: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float | None]]:
    return {
        split: {name: value if math.isfinite(value) else None for name, value in figures.items()}
        for split, figures in found.items()
    }
