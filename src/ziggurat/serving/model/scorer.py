"""An exported model: raw rows in, predictions out.

Shape legend: B rows, T labels, C columns of all labels.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ziggurat.core.digests import load_tensors
from ziggurat.data.readers.blocks import BadRow, RawBlock
from ziggurat.features.transform import Transform
from ziggurat.objectives.task import column_slices
from ziggurat.serving.artefact.damage import DAMAGED
from ziggurat.serving.artefact.dense_program import PROGRAM_FILE, TENSORS_FILE, load_program
from ziggurat.serving.artefact.manifest import TABLES, TRANSFORM, Manifest
from ziggurat.serving.model.compiled_code import CompiledCode, Runner
from ziggurat.serving.tables.inputs import Inputs
from ziggurat.serving.tables.kernels import kernels
from ziggurat.serving.tables.lookup import Lookup, Reading
from ziggurat.serving.tables.mapped_rows import MappedRows
from ziggurat.serving.tables.plain_lookup import PlainLookup
from ziggurat.serving.tables.residence import Residence
from ziggurat.serving.tables.stores import MemoryTable
from ziggurat.storage.native import NativeUnavailable

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scored:
    """The predictions for some rows.

    Attributes:
        kept: the positions of the rows that were predicted.
        predictions_BT: their predictions: probabilities, or numbers in the labels' units.
        further: label -> further predictions by name: of each quantile, the probability of each level.
        bad: the rows that the reader or the transform rejected.
    """

    kept: npt.NDArray[np.int64]
    predictions_BT: Floats
    further: dict[str, dict[str, Floats]]
    bad: list[BadRow]


class Scorer:
    """Predicts with an export. Threads may share it.

    Args:
        folder: the export.
        manifest: its manifest.
        transform: its transform.
        lookup: the look-ups in its tables.
        dense: the dense part.
        code: its compiled code, which is used once it is there; None: it is computed by the graph, whose bits are
            those of the run.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        transform: Transform,
        lookup: Lookup | PlainLookup,
        dense: nn.Module,
        code: CompiledCode | None = None,
    ) -> None:
        self.folder, self.manifest, self.transform, self._dense = folder, manifest, transform, dense
        self.lookup, self.code = lookup, code
        self._runner: Runner | None = None
        self._turn = threading.Lock()

    @property
    def dense(self) -> nn.Module:
        """The dense part."""
        return self._dense

    @classmethod
    def open(
        cls, folder: Path, *, residence: Residence | None = None, check_tables: bool = False, compiled: int = 0
    ) -> Scorer:
        """Opens an export.

        Args:
            folder: the export.
            residence: its tables in memory, and the caches of the others; default: all are mapped into memory.
            check_tables: whether to compare the tables with their checksums, which reads them once.
            compiled: the threads for which compiled code is taken, once it is there; 0: none is.

        Raises:
            DataError: it is no export, of another version, or damaged.
        """
        manifest = Manifest.read(folder)
        small = [name for name in manifest.files if not name.startswith(f"{TABLES}/")]
        manifest.check_files(folder, None if check_tables else small)
        transform = Transform.load(folder / TRANSFORM)
        _check_ids(folder, manifest, transform)
        lookup = open_lookup(folder, manifest) if residence is None else residence.lookup()
        code = CompiledCode(folder, manifest, compiled) if compiled else None
        return cls(folder, manifest, transform, lookup, open_dense(folder, manifest), code)

    def score(self, block: RawBlock) -> Scored:
        """Returns the predictions for the rows of a block that can be encoded, and the other rows."""
        encoded = self.transform.apply(block, labelled=False)
        inputs = Inputs.of(self.manifest, encoded.batch)
        step = self.manifest.batch_size
        parts = [np.empty((0, sum(task.columns for task in self.manifest.tasks)), np.float32)]
        parts += [self.columns(inputs.rows(start, start + step)) for start in range(0, inputs.size, step)]
        predictions_BT, further = predictions(self.manifest, np.concatenate(parts))
        return Scored(encoded.kept_rows, predictions_BT, further, encoded.bad)

    def columns_of_requests(
        self, inputs: Inputs, places: Mapping[str, Ints], reading: Reading = contextlib.nullcontext
    ) -> Floats:
        """Returns the columns (B, C) of rows that share some of their features.

        Args:
            inputs: the rows; the ids of the features in ``places`` are those of fewer rows.
            places: feature -> which row of its ids each row has (B,).
            reading: that of a look-up.
        """
        rows, masks = self.lookup(inputs, reading)
        feature_of = self.manifest.feature_of
        indices = {id(at): torch.from_numpy(at) for at in places.values()}  # features of a context share theirs
        for found in (rows, masks):
            for name in found:
                at = places.get(feature_of[name])
                if at is not None:
                    found[name] = found[name].index_select(0, indices[id(at)])
        dense_BF = aligned(inputs.dense)
        parts = [np.empty((0, sum(task.columns for task in self.manifest.tasks)), np.float32)]
        with self._turn, torch.no_grad():
            for start in range(0, inputs.size, self.manifest.batch_size):
                some = slice(start, min(start + self.manifest.batch_size, inputs.size))
                of_rows, of_masks = ({name: each[some] for name, each in found.items()} for found in (rows, masks))
                parts.append(self._compute(dense_BF[some], of_rows, of_masks))
        return np.concatenate(parts)

    def columns(self, inputs: Inputs) -> Floats:
        """Returns the columns (B, C) of some inputs."""
        rows, masks = self.lookup(inputs)
        with self._turn, torch.no_grad():
            return self._compute(aligned(inputs.dense), rows, masks)

    def _compute(self, dense_BF: Tensor, rows: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Floats:
        if self._runner is None and self.code is not None:
            self._runner = self.code.runner(self._dense)
        return (self._runner or self._dense)(dense_BF, rows, masks).numpy()


def _check_ids(folder: Path, manifest: Manifest, transform: Transform) -> None:
    """Checks that no encoder makes ids beyond the rows of its table, which kernels read without looking.

    Raises:
        DataError: one does.
    """
    schema = transform.schema
    for entry in manifest.tables:
        for name in entry.features:
            table = schema.tables.get(manifest.feature_of[name])
            if table is None or schema.rows[table] > entry.rows:
                ids = "has no encoder" if table is None else f"is encoded to {schema.rows[table]:,} ids"
                raise DAMAGED.of(
                    folder,
                    f"feature {manifest.feature_of[name]!r} {ids}, and table {entry.name!r} has {entry.rows:,} rows",
                )


def open_lookup(folder: Path, manifest: Manifest) -> Lookup | PlainLookup:
    """Returns the look-ups in the tables of an export, by compiled kernels where there is a C compiler."""
    paths = {entry.name: folder / TABLES / entry.file for entry in manifest.tables}
    try:
        kernels()
    except NativeUnavailable:
        precision = manifest.precision
        return PlainLookup(
            manifest, {entry.name: MappedRows(paths[entry.name], entry, precision) for entry in manifest.tables}
        )
    return Lookup(
        manifest, {entry.name: MemoryTable(paths[entry.name], entry, manifest.precision) for entry in manifest.tables}
    )


def aligned(values: npt.NDArray[Any]) -> Tensor:
    """Returns a copy of an array in memory of PyTorch's, which begins at a multiple of 64 bytes.

    The last bits of a product of matrices may depend on where these begin, and numpy's arrays begin anywhere.
    """
    return torch.from_numpy(values).clone()


def open_dense(folder: Path, manifest: Manifest) -> nn.Module:
    """Returns the dense part of an export.

    Raises:
        DataError: it is damaged.
    """
    recorded = manifest.files[PROGRAM_FILE].checksum, manifest.files[TENSORS_FILE].checksum
    data = recorded[0].read(folder / PROGRAM_FILE, DAMAGED)
    arrays = load_tensors(folder / TENSORS_FILE, recorded[1], DAMAGED)
    tensors = {name: aligned(each) for name, each in arrays.items()}
    return load_program(data, tensors, str(folder / PROGRAM_FILE), DAMAGED)


def predictions(manifest: Manifest, columns_BC: Floats) -> tuple[Floats, dict[str, dict[str, Floats]]]:
    """Returns the predictions (B, T), and further ones of each label, as prediction with a run computes them."""
    found = np.empty((len(columns_BC), len(manifest.tasks)), np.float32)
    further: dict[str, dict[str, Floats]] = {}
    for number, (task, at) in enumerate(zip(manifest.tasks, column_slices(manifest.tasks), strict=True)):
        if task.is_probability:
            found[:, number] = torch.sigmoid(torch.from_numpy(columns_BC[:, at.start])).numpy()
        else:
            found[:, number] = task.predictions(columns_BC[:, at])
            more = task.further(columns_BC[:, at])
            further[task.name] = {name: values.astype(np.float32) for name, values in more.items()}
    return found, further
