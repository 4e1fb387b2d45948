"""Writes a run or an ensemble as an ONNX model, and checks it with ONNX Runtime.

The folder has ``model.onnx`` (with ``model.onnx.data`` if its weights exceed what one file of ONNX may hold),
``inputs.json``, which says what each input is, and ``encoders/``, the transform that makes ids and numbers of raw rows.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ziggurat.core.batch import Batch
from ziggurat.core.errors import ConfigError, DataError, EnvironmentMismatch
from ziggurat.core.files import atomic_folder
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.sealed import write_sealed_json
from ziggurat.data.encoded.columns import Columns
from ziggurat.data.encoded.dataset import Dataset, Split
from ziggurat.embeddings.layout import Layout
from ziggurat.exporting.dense_graph import MOST_ROWS
from ziggurat.exporting.onnx.whole_model import ColumnsOfIds, WholeModel, inputs_of, varying
from ziggurat.exporting.opened_run import (
    check_new,
    members_of,
    on_cpu,
    open_exportable,
    opened_model,
    recommenders_of,
)
from ziggurat.exporting.table_files import in_memory
from ziggurat.objectives.task import Task, column_slices
from ziggurat.serving.artefact.manifest import ONNX_FILE
from ziggurat.training.ensemble.combined import CombinedRecommender
from ziggurat.training.ensemble.ensemble import Ensemble
from ziggurat.training.recommender import Recommender
from ziggurat.training.run_folder.run import Run

INPUTS_FILE = "inputs.json"
TOLERANCE = 1e-5
_LARGEST_FILE = 1_900_000_000
"""Bytes of weights above which they are written beside the model: a file of ONNX holds less than 2 GiB."""
_MOST_IDS = 1 << 16
_SAMPLE_ROWS = 500
_NEEDED = ("onnx", "onnxruntime", "onnxscript")


@dataclass(frozen=True, slots=True)
class ExportedOnnx:
    """What was written.

    Attributes:
        folder: the folder.
        bytes: the size of all files.
        largest_difference: the greatest difference of a prediction of ONNX Runtime from PyTorch's, relative to 1 or the
            prediction, whichever is greater.
        sample_rows: how many rows were predicted both ways.
    """

    folder: Path
    bytes: int
    largest_difference: float
    sample_rows: int


def export_onnx(
    run: Run | Ensemble | str | Path,
    out: str | Path,
    *,
    checkpoint: str = "best",
    prepared: str | Path | None = None,
    progress: Progress | None = None,
) -> ExportedOnnx:
    """Writes a run or an ensemble as an ONNX model from ids to predictions, with its tables in fp32.

    Products are in fp32, also those of a run that was trained with bf16.

    Args:
        run: the run or the ensemble, or its folder.
        out: the folder to write, which must not exist.
        checkpoint: ``best``, ``last`` or a step of a run; an ensemble has its own.
        prepared: folder of the encoded dataset, if it has moved since the run was trained.
        progress: where to show progress.

    Raises:
        ConfigError: the folder exists, the tables are not in memory, an operator of the model cannot be converted, or
            members of an ensemble take the ids of a sequence in different forms.
        EnvironmentMismatch: packages of the extra ``onnx`` are missing.
        RunFolderError: there is no such run or checkpoint.
        DataError: the dataset does not exist, or ONNX Runtime predicts otherwise than PyTorch.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise EnvironmentMismatch(
            f"the format onnx needs {', '.join(missing)}, not installed here", "pip install 'ziggurat[onnx]'"
        )
    out, progress = Path(out), progress or Silent()
    check_new(out)
    opened = on_cpu(open_exportable(run), precision="fp32")
    step = members_of(opened, checkpoint)[0].step
    dataset = opened.dataset(prepared)
    with opened_model(opened, dataset, step, progress) as recommender, atomic_folder(out) as folder:
        members = recommenders_of(recommender)
        layout, transform = _common_layout(members), opened.transform()
        progress.start("export", 1, "model")
        tasks = opened.experiment.tasks(transform.schema)
        parts = [ColumnsOfIds(each.part, each.lookup.layout, dict(_tables(each))) for each in members]
        weights_MC = recommender.weights_MC if isinstance(recommender, CombinedRecommender) else None
        models = ", ".join(dict.fromkeys(type(each.model).__name__ for each in members))
        _write_model(folder / ONNX_FILE, WholeModel(parts, tasks, weights_MC).eval(), models, layout)
        (folder / "encoders").mkdir()
        transform.save(folder / "encoders")
        write_sealed_json(folder / INPUTS_FILE, _described(layout, [task.name for task in tasks]))
        largest, rows = _compared(folder / ONNX_FILE, recommender, layout, dataset, tasks)
        progress.advance(1)
        progress.finish()
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return ExportedOnnx(out, size, largest, rows)


def onnx_inputs(layout: Layout, batch: Batch) -> dict[str, npt.NDArray[Any]]:
    """Returns a batch as inputs of the model, by name."""
    found: dict[str, npt.NDArray[Any]] = {"dense": batch.dense_BF.numpy()}
    jagged = {
        name: each
        for part in (batch.bags, batch.sequences)
        if part is not None
        for name, each in part.to_dict().items()
    }
    for name in layout.schema.sparse:
        values, lengths = jagged[name].values().numpy().astype(np.int64), jagged[name].lengths().numpy()
        if name in layout.schema.categorical:
            found[name] = values
            continue
        position = layout.positions.get(name)
        count = position.count if position is not None else max(1, int(lengths.max(initial=0)))
        ids = np.full((len(lengths), count), -1, np.int64)
        for row, (end, length) in enumerate(zip(np.cumsum(lengths), lengths, strict=True)):
            own = values[end - length : end]
            own = own[::-1][:count] if position is not None else own
            ids[row, : len(own)] = own
        found[name] = ids
    return found


def _common_layout(members: Sequence[Recommender]) -> Layout:
    """Returns the layout of the members' inputs.

    Raises:
        ConfigError: they take the ids of a sequence in different forms.
    """
    first = members[0].lookup.layout
    for each in members[1:]:
        layout = each.lookup.layout
        for name in layout.schema.sequences:
            counts = [None if (how := of.positions.get(name)) is None else how.count for of in (first, layout)]
            if counts[0] != counts[1]:
                raise ConfigError(
                    f"sequence {name!r}: members of the ensemble take its ids in different forms, and a model of ONNX "
                    "has one input for it",
                    "use the format ziggurat, or an ensemble of runs with one kind of pooling for it",
                )
    return first


def _tables(recommender: Recommender) -> Iterator[tuple[str, Tensor]]:
    for tensor_slice in recommender.lookup.tensor_slices():
        if tensor_slice.tensor.is_meta:
            raise ConfigError(
                f"table {tensor_slice.name!r}: its rows are not in memory, and a model of ONNX holds them all",
                "use the format ziggurat, or export on a machine whose memory holds the tables",
            )
        yield tensor_slice.name, torch.from_numpy(in_memory(tensor_slice)(0, tensor_slice.shape[0]))


def _write_model(path: Path, model: nn.Module, names_of_models: str, layout: Layout) -> None:
    names = ["dense", *layout.schema.sparse]
    try:
        with _quiet(), torch.no_grad():
            sizes = varying(layout, MOST_ROWS, _MOST_IDS)
            shapes = {"dense_BF": sizes[0]} | ({"ids": sizes[1:]} if layout.schema.sparse else {})
            program = torch.export.export(model, inputs_of(layout), dynamic_shapes=shapes)
            made = torch.onnx.export(
                program, dynamo=True, verbose=False, input_names=names, output_names=["predictions"]
            )
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigError(
            f"model {names_of_models}: cannot be converted to ONNX: {reason[:300]}",
            "use the format ziggurat, which takes any graph of tensor operations",
        ) from error
    assert made is not None
    size = sum(each.nbytes for each in model.state_dict().values())
    made.save(str(path), external_data=size > _LARGEST_FILE)


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Silences PyTorch's remarks about itself while it converts."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _compared(
    path: Path,
    recommender: Recommender | CombinedRecommender,
    layout: Layout,
    dataset: Dataset,
    tasks: Sequence[Task],
) -> tuple[float, int]:
    """Returns the greatest difference of ONNX Runtime's predictions from the run's, and of how many rows.

    Raises:
        DataError: it exceeds ``TOLERANCE``.
    """
    splits: tuple[Split, ...] = ("validation", "train", "test")
    split: Split | None = next((name for name in splits if dataset.split(name).rows), None)
    if split is None:
        raise DataError(f"{dataset.folder}: has no rows to compare the export on", "name another with --prepared DIR")
    sample = Columns([dataset.split(split).read(0)], dataset.schema, labelled=False)
    batch = sample.batch(np.arange(min(_SAMPLE_ROWS, sample.rows)))
    theirs = run_model(path, onnx_inputs(layout, batch))
    with torch.no_grad():
        columns_BC = recommender(batch)[0].numpy()
    places = column_slices(tasks)
    ours = np.stack([task.predictions(columns_BC[:, at]) for task, at in zip(tasks, places, strict=True)], axis=1)
    largest = float((np.abs(theirs - ours) / np.maximum(1, np.abs(ours))).max())
    if not largest <= TOLERANCE:
        raise DataError(
            f"{path.name}: predictions of ONNX Runtime differ from the run's by up to {largest:.2g}; "
            f"{TOLERANCE:g} is allowed",
            "use the format ziggurat, or report the model",
        )
    return largest, len(ours)


def run_model(path: Path, inputs: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    """Returns the predictions (B, T) of ONNX Runtime."""
    import onnxruntime  # pyright: ignore[reportMissingImports] - of an extra

    runtime: Any = onnxruntime
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wanted = {each.name for each in session.get_inputs()}  # an input that nothing depends on may be left out
    return session.run(None, {name: each for name, each in inputs.items() if name in wanted})[0]


def _described(layout: Layout, labels: list[str]) -> dict[str, Any]:
    """Returns what each input is."""
    inputs: list[dict[str, Any]] = [{"name": "dense", "kind": "numbers", "columns": list(layout.schema.dense)}]
    for name in layout.schema.sparse:
        spec = layout.table_of[name]
        kind = "id" if name in layout.schema.categorical else "ids"
        entry: dict[str, Any] = {"name": name, "kind": kind, "table": spec.name, "rows": spec.rows}
        if name in layout.positions:
            entry |= {"kind": "recent ids", "positions": layout.positions[name].count}
        inputs.append(entry)
    return {"format_version": 1, "inputs": inputs, "predictions": labels}
