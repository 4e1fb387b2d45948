"""``export.json``: what an export is, and the size and checksums of each of its files.

It is written last and sealed, so that a folder with a valid one is complete. As it names the SHA-256 of every other
file, a signature of this file alone signs the whole export.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import TypeAdapter

from ziggurat.core.digests import FileChecksum
from ziggurat.core.errors import DataError
from ziggurat.core.sealed import declared, read_sealed_json, write_sealed_json
from ziggurat.core.untrusted import file_name, is_plain_folder, opened
from ziggurat.objectives.task import Task
from ziggurat.serving.artefact.damage import DAMAGED, check_version
from ziggurat.serving.artefact.dense_program import PROGRAM_FILE, TENSORS_FILE
from ziggurat.serving.artefact.packed_rows import PackedRows
from ziggurat.serving.artefact.row_codec import PRECISIONS, Precision, row_bytes

MANIFEST_FILE = "export.json"
ONNX_FILE = "model.onnx"
"""The model in an export for other runtimes, which has no manifest."""
FORMAT_VERSION = 1
ENSEMBLE_FORMAT_VERSION = 2
"""That of exports of ensembles, whose inputs are not named as features are."""
TRANSFORM = "encoders"
TABLES = "tables"
SAMPLE_FILE = "sample.json"
STATISTICS_FILE = "statistics.safetensors"
Side = Literal["user", "item"]
_COMPUTED = {"table_of", "feature_of", "features"}
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The size and checksums of a file."""

    bytes: int
    xxh3_128: str
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Reads a file that was just written."""
        sha256 = hashlib.sha256()
        with opened(path, DAMAGED) as file:
            while data := file.read(_CHUNK):
                sha256.update(data)
        checksum = FileChecksum.of(path, DAMAGED)
        return cls(checksum.bytes, checksum.xxh3_128, sha256.hexdigest())

    @property
    def checksum(self) -> FileChecksum:
        return FileChecksum(self.bytes, self.xxh3_128)


def manifest_digest(data: bytes) -> str:
    """Returns what names an export: the first 16 digits of the SHA-256 of its ``export.json``."""
    return hashlib.sha256(data).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table of an export.

    Attributes:
        name: its name.
        rows: number of rows.
        dim: numbers of a row.
        file: the file of its rows, in the folder ``tables``.
        pooling: how the rows of a bag become one: their sum or mean.
        features: the inputs that are looked up in it; see :attr:`Manifest.inputs`.
        positions: input of a sequence -> how many of its last ids are looked up one by one.
        side: whether it is read once a request, or for each candidate.
        divides: whether a mean is the sum divided by the number of rows, as torch computes it; if not, it is the sum
            times one over that number, as FBGEMM does. The two differ in the last bit.
        lookups: input -> rows that a row of the training data looked up for it on average, as far as that is known.
    """

    name: str
    rows: int
    dim: int
    file: str
    pooling: Literal["sum", "mean"]
    features: tuple[str, ...]
    positions: dict[str, int]
    side: Side
    divides: bool = False
    lookups: dict[str, float] = field(default_factory=dict[str, float])

    def layout(self, precision: Precision) -> PackedRows:
        """Returns where its rows are in the file."""
        return PackedRows(self.rows, row_bytes(self.dim, precision))


@dataclass(frozen=True, slots=True)
class Source:
    """What was exported.

    Attributes:
        name: the experiment's name; of an ensemble that of its first member.
        run_id: the id of the run; of an ensemble one that is made of its members' and their weights.
        step: the step of the checkpoint; of an ensemble the last step of its members.
        version: the version of ziggurat that exported it.
        torch: the version of PyTorch that wrote the dense part, and that reads it.
    """

    name: str
    run_id: str
    step: int
    version: str
    torch: str


@dataclass(frozen=True, slots=True)
class SourceMember:
    """A checkpoint of an ensemble that was exported.

    Attributes:
        run_id: the id of its run.
        step: its step.
        weights: label -> the weight of its outputs.
    """

    run_id: str
    step: int
    weights: dict[str, float]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of ``export.json``.

    Attributes:
        source: what was exported.
        precision: how the rows of tables are stored.
        batch_size: rows that are predicted at a time.
        tasks: the labels, in the order of the predictions.
        dense: the dense features, in the order in which the dense part takes them.
        inputs: the names of the rows that the dense part takes, in its order. They are the names of features; in the
            export of an ensemble each member has its own, as ``2/item`` for the feature ``item`` of the second.
        tables: the tables.
        user_columns: the raw columns that a request gives once for all its candidates.
        figures: split -> the figures of the checkpoint, as far as they are known.
        deviation: what the precision changes: of the predictions of sample rows, of the validation split's NE.
        files: path in the folder -> its size and checksums.
        trained: tensor of the dense part -> its name in a checkpoint's group ``dense``; those that training never
            changes are left out. Empty in exports of earlier versions, and of ensembles.
        members: the checkpoints of an ensemble, in the order of their weights in the dense part; else empty.
        input_features: input -> the feature that it is made of, in the export of an ensemble; else empty.
        format_version: version of the format.
        table_of: input -> its table.
        feature_of: input -> its feature.
        features: the features that are looked up, in the order of the inputs.
    """

    source: Source
    precision: Precision
    batch_size: int
    tasks: tuple[Task, ...]
    dense: tuple[str, ...]
    inputs: tuple[str, ...]
    tables: tuple[TableEntry, ...]
    user_columns: tuple[str, ...]
    figures: dict[str, dict[str, float | None]]
    deviation: dict[str, float]
    files: dict[str, StoredFile]
    trained: dict[str, str] = field(default_factory=dict[str, str])
    members: tuple[SourceMember, ...] = ()
    input_features: dict[str, str] = field(default_factory=dict[str, str])
    format_version: int = FORMAT_VERSION
    table_of: dict[str, TableEntry] = field(init=False, repr=False, compare=False)
    feature_of: dict[str, str] = field(init=False, repr=False, compare=False)
    features: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        table_of = {feature: table for table in self.tables for feature in table.features}
        feature_of = {name: self.input_features.get(name, name) for name in self.inputs}
        object.__setattr__(self, "table_of", table_of)
        object.__setattr__(self, "feature_of", feature_of)
        object.__setattr__(self, "features", tuple(dict.fromkeys(feature_of.values())))

    def write(self, folder: Path) -> None:
        """Writes ``export.json``."""
        values: dict[str, Any] = TypeAdapter(Manifest).dump_python(self, mode="json", exclude=_COMPUTED)
        if not self.members:
            del values["members"], values["input_features"]
        write_sealed_json(folder / MANIFEST_FILE, values)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads and checks ``export.json``, and the sizes of the other files.

        Raises:
            DataError: the folder holds no export, one of another version, or a damaged one.
        """
        found = cls.open(folder)
        for name, stored in found.files.items():
            place = folder / name
            if not is_plain_folder(place.parent):
                raise DAMAGED.of(place.parent, "is missing, or no plain folder")
            size = place.lstat().st_size if place.is_file() and not place.is_symlink() else -1
            if size != stored.bytes:
                fault = "is missing" if size < 0 else f"is damaged: it has {size:,} bytes"
                raise DAMAGED.of(place, f"{fault}, {stored.bytes:,} were written")
        return found

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Reads and checks ``export.json`` alone.

        Raises:
            DataError: as :meth:`read`.
        """
        path = folder / MANIFEST_FILE
        if folder.is_symlink():
            raise DAMAGED.of(folder, "is a symbolic link, which is not followed")
        try:
            values = read_sealed_json(path, DAMAGED)
        except FileNotFoundError:
            if (folder / ONNX_FILE).is_file():
                raise DataError(
                    f"{folder}: an export for ONNX runtimes, which ziggurat does not serve",
                    "serve it with its runtime, or make an export without --format onnx: ziggurat export RUN OUT",
                ) from None
            raise DataError(
                f"{folder}: no export ({MANIFEST_FILE} is missing)", "make one: ziggurat export RUN OUT"
            ) from None
        check_version(values, path, FORMAT_VERSION, ENSEMBLE_FORMAT_VERSION)
        found = declared(cls, values, path, DAMAGED)
        for fault in found._faults(path):
            raise DAMAGED.of(path, fault)
        return found

    def check_files(self, folder: Path, names: Iterable[str] | None = None) -> None:
        """Compares files with their checksums; all by default.

        Raises:
            DataError: one is missing or another; the message names it.
        """
        for name in self.files if names is None else names:
            self.files[name].checksum.check(folder / name, DAMAGED)

    def _faults(self, path: Path) -> Iterator[str]:
        """Yields what does not fit together.

        Raises:
            DataError: the name of a file leads out of the folder.
        """
        if self.precision not in PRECISIONS:
            yield f"precision: {self.precision!r}"
        for name, stored in self.files.items():
            for part in name.split("/"):
                file_name(part, path, DAMAGED)
            if not 0 <= stored.bytes < 1 << 63:
                yield f"{name!r} has {stored.bytes:,} bytes"
        for name in (PROGRAM_FILE, TENSORS_FILE):
            if name not in self.files:
                yield f"lacks the file {name}"
        for table in self.tables:
            if not 1 <= table.rows < 1 << 48 or not 1 <= table.dim <= 1 << 16:
                yield f"table {table.name!r} has {table.rows:,} rows of {table.dim:,} numbers"
                return
            stored = self.files.get(f"{TABLES}/{table.file}")
            size = table.layout(self.precision).bytes
            if stored is None or stored.bytes != size:
                yield f"table {table.name!r}: {table.file} does not hold {size:,} bytes"
        missing = set(self.inputs) ^ set(self.table_of)
        if missing:
            yield f"feature {min(missing)!r} has no table, or is not used"
        if set(self.input_features) != (set(self.inputs) if self.members else set()):
            yield "does not say which features its inputs are"
        if bool(self.members) != (self.format_version == ENSEMBLE_FORMAT_VERSION):
            yield f"format version {self.format_version} with {len(self.members):,} members"
        if not self.tasks or self.batch_size < 1:
            yield "has no labels, or batches without rows"
