"""The manifest of an encoded dataset, ``manifest.json``: its content, and how it is written, read and checked.

Format version 2 is sealed (:mod:`ziggurat.core.sealed`) and has checksums: of each block (``checksums`` of a file, one
for each of its ``blocks``), of the fitted transform and of the statistics (``checksums`` of the manifest: those that
``encoders/transform.json`` and ``statistics.json`` carry, each of which covers the other files of its kind). A split
whose blocks are made on demand says so, and has no checksums. Version 1 has none at all; it is still read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ziggurat.core.errors import DataError, shorten
from ziggurat.core.schema import Schema, duplicates
from ziggurat.core.sealed import declared, sealed, unsealed, write_sealed_json
from ziggurat.core.untrusted import Damage, file_name, read_json_object

FORMAT_VERSION = 2
READABLE_VERSIONS = (1, 2)
CONTENT_VERSION = 1
"""Version of what encoded rows mean, which is part of a dataset's fingerprint. Checksums did not change it."""
MANIFEST_FILE = "manifest.json"
FILE_BLOCKS = 32
ENCODERS = "encoders"
"""Name of the folder of the fitted transform, and of its checksum in the manifest."""
STATISTICS = "statistics"
"""Name of the checksum of the statistics in the manifest."""

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

DAMAGED = Damage(DataError, "delete the prepared folder and run `ziggurat prepare` again")
"""What the errors about a damaged dataset look like."""
_SCHEMA_KEYS = (
    "dense", "categorical", "bags", "sequences", "tables", "rows", "labels", "has_weight", "has_group", "has_time",
)  # fmt: skip
_LABEL_KINDS = ("soft", "regression", "ordinal")
"""The kinds of labels that are not binary."""
_MOST_ROWS = 2**31 - 1
"""The most rows of a block."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a split.

    Attributes:
        name: its name in the split's folder.
        blocks: the number of rows of each block.
        checksums: the checksum of each block; None in format version 1, and for blocks made on demand.
    """

    name: str
    blocks: tuple[int, ...]
    checksums: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class StoredSplit:
    """The files of a split.

    Attributes:
        rows: the number of rows in all of them.
        files: the files.
        on_demand: whether readers make the blocks from raw logs, so that their checksums are not known.
    """

    rows: int
    files: tuple[StoredFile, ...]
    on_demand: bool = False

    @property
    def checksums(self) -> tuple[str, ...] | None:
        """The checksum of each block, over all files; None if there are none."""
        if not all(file.checksums is not None for file in self.files):
            return None
        return tuple(checksum for file in self.files for checksum in file.checksums or ())


@dataclass(frozen=True, slots=True)
class Quarantined:
    """How many rows preparation rejected, and a line for each kind of rejection."""

    rows: int = 0
    summary: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DatasetManifest:
    """The content of a manifest.

    Attributes:
        format_version: 1 or 2.
        fingerprint: fingerprint of the config and the raw files.
        schema: the encoded columns.
        block_rows: the most rows of a block.
        splits: the files of each split.
        checksums: ``encoders`` and ``statistics`` -> checksum, as far as the dataset has them.
        quarantined: the rejected rows.
        sources: the raw files.
        negatives: how many negatives were sampled, if any were asked for.
        kept: table -> the checksum of the earlier transform that its encoder continues, if it does.
    """

    format_version: int
    fingerprint: str
    schema: Schema
    block_rows: int
    splits: dict[str, StoredSplit]
    checksums: dict[str, str] = field(default_factory=dict[str, str])
    quarantined: Quarantined = Quarantined()
    sources: tuple[str, ...] = ()
    negatives: dict[str, Any] | None = None
    kept: dict[str, str] = field(default_factory=dict[str, str])


def manifest(
    fingerprint: str,
    schema: Schema,
    block_rows: int,
    splits: Mapping[str, Any],
    details: Mapping[str, Any],
    checksums: Mapping[str, str],
) -> dict[str, Any]:
    """Returns the content of ``manifest.json``.

    Args:
        fingerprint: identifies the config and the raw files that the dataset was made from.
        schema: the schema of the dataset.
        block_rows: rows per block.
        splits: a result of :func:`split_files` for each split.
        details: further JSON to store.
        checksums: the checksums of transform and statistics, as far as there are any.
    """
    return {
        "format_version": FORMAT_VERSION,
        "fingerprint": fingerprint,
        "schema": schema.to_json(),
        "block_rows": block_rows,
        "splits": dict(splits),
        **details,
        "checksums": dict(checksums),
    }


def split_files(sizes: Sequence[int], checksums: Sequence[str] | None = None) -> dict[str, Any]:
    """Returns the manifest entry of a split: the files that hold blocks of these sizes.

    Args:
        sizes: number of rows of each block.
        checksums: the checksum of each block; None if blocks are made on demand.
    """
    files: list[dict[str, Any]] = []
    for number, first in enumerate(range(0, len(sizes), FILE_BLOCKS)):
        part = slice(first, first + FILE_BLOCKS)
        files.append({"name": f"{number:05d}.arrow", "blocks": list(sizes[part])})
        if checksums is not None:
            files[-1]["checksums"] = list(checksums[part])
    return {"rows": sum(sizes), "files": files, **({"on_demand": True} if checksums is None else {})}


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes a result of :func:`manifest` with its own checksum, which makes the folder a dataset."""
    write_sealed_json(folder / MANIFEST_FILE, content)


def record_block_checksums(folder: Path, found: Mapping[Split, Sequence[str]]) -> None:
    """Adds the checksums of blocks to the manifest of a copied dataset, where they were made on demand.

    Args:
        folder: the dataset, whose manifest is written anew.
        found: the checksums of all blocks of each copied split.
    """
    values, stored = read_manifest(folder)
    splits = {
        name: split_files([rows for file in stored.splits[name].files for rows in file.blocks], checksums)
        for name, checksums in found.items()
        if stored.splits[name].on_demand
    }
    if splits:
        write_manifest(folder, {**values, "splits": {**values["splits"], **splits}})


def read_manifest(folder: Path) -> tuple[dict[str, Any], DatasetManifest]:
    """Reads and checks the manifest of a dataset.

    Returns:
        Its values as they are stored, with the checksum that they carry, and the same as a :class:`DatasetManifest`.

    Raises:
        DataError: there is none, it is damaged, or it is of another format version.
    """
    path = folder / MANIFEST_FILE
    try:
        stored = read_json_object(path, DAMAGED)
    except FileNotFoundError:
        raise DataError(
            f"{folder}: no prepared dataset (manifest.json is missing)", "run `ziggurat prepare` first"
        ) from None
    version = stored.get("format_version")
    if version not in READABLE_VERSIONS:
        raise DataError(
            f"{path}: dataset format {version!r}, this ziggurat reads {FORMAT_VERSION}",
            "delete the folder and run `ziggurat prepare` again",
        )
    values = unsealed(stored, path, DAMAGED, required=version >= FORMAT_VERSION)
    found = declared(DatasetManifest, values, path, DAMAGED)
    if version >= FORMAT_VERSION:
        _check_keys(values, path)
    _check(found, path)
    return (stored if version < FORMAT_VERSION else sealed(values)), found


def _check_keys(values: Mapping[str, Any], path: Path) -> None:
    """Checks that keys are there that version 1 lacks, or without which the dataset would seem to have no such columns.

    Raises:
        DataError: one is not.
    """
    missing = [key for key in ("checksums",) if key not in values]
    missing += [f"schema.{key}" for key in _SCHEMA_KEYS if key not in values["schema"]]
    if missing:
        raise DAMAGED.of(path, f"lacks {missing[0]}")


def _check(found: DatasetManifest, path: Path) -> None:
    """Checks what types do not express.

    Raises:
        DataError: a value contradicts another, or is out of its range.
    """
    if not 1 <= found.block_rows <= _MOST_ROWS:
        raise DAMAGED.of(path, f"block_rows is {found.block_rows}, allowed are 1 to {_MOST_ROWS:,}")
    if found.quarantined.rows < 0:
        raise DAMAGED.of(path, f"quarantined: has {found.quarantined.rows} rows")
    _check_schema(found.schema, path)
    for name in SPLITS:
        split = found.splits.get(name)
        if split is None:
            raise DAMAGED.of(path, f"lacks the split {name}")
        for file in split.files:
            file_name(file.name, path, DAMAGED)
            _check_file(file, found, f"{path}: {name}/{file.name}", split.on_demand)
        twice = duplicates(file.name for file in split.files)
        if twice:
            raise DAMAGED.of(path, f"lists the file {name}/{twice[0]} twice")
        total = sum(sum(file.blocks) for file in split.files)
        if split.rows != total:
            raise DAMAGED.of(path, f"says that split {name} has {split.rows:,} rows, and lists blocks of {total:,}")


def _check_file(file: StoredFile, found: DatasetManifest, where: str, on_demand: bool) -> None:
    outside = next((rows for rows in file.blocks if not 1 <= rows <= found.block_rows), None)
    if outside is not None:
        raise DAMAGED.of(where, f"lists a block of {outside:,} rows, allowed are 1 to {found.block_rows:,}")
    expected = 0 if found.format_version < FORMAT_VERSION or on_demand else len(file.blocks)
    if len(file.checksums or ()) != expected:
        raise DAMAGED.of(where, f"has {len(file.checksums or ())} checksums for {len(file.blocks)} blocks")


def _check_schema(schema: Schema, path: Path) -> None:
    twice = duplicates((*schema.dense, *schema.sparse)) or duplicates(schema.labels)
    if twice:
        raise DAMAGED.of(path, f"schema: the name {twice[0]!r} occurs twice")
    for label in (*schema.kinds, *schema.levels, *schema.counted):
        if label not in schema.labels:
            raise DAMAGED.of(path, f"schema: describes the label {label!r}, which it does not have")
    for feature in schema.sparse:
        table = schema.tables.get(feature)
        rows = None if table is None else schema.rows.get(table)
        if rows is None:
            raise DAMAGED.of(path, f"schema: does not say the table of feature {feature!r}, or its rows")
        if not 1 <= rows < 2**63:
            raise DAMAGED.of(path, f"schema: table {table!r} has {rows} rows, allowed are 1 to 2^63 - 1")
    for table in schema.rows:
        if table not in schema.tables.values():
            raise DAMAGED.of(path, f"schema: no feature is looked up in table {table!r}")
    for feature in schema.tables:
        if feature not in schema.sparse:
            raise DAMAGED.of(path, f"schema: gives a table to {feature!r}, which is no feature with ids")
    for label, kind in schema.kinds.items():
        if kind not in _LABEL_KINDS:
            raise DAMAGED.of(path, f"schema: label {label!r} is {shorten(kind)}, allowed are {', '.join(_LABEL_KINDS)}")
    for label in schema.levels:
        if schema.kinds.get(label) != "ordinal":
            raise DAMAGED.of(path, f"schema: gives levels to label {label!r}, which is not ordinal")
