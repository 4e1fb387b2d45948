"""The manifest of a checkpoint: the content of its files, and checksums to verify them.

It is written last, and turns the folder into a checkpoint: a process that dies before leaves no checkpoint.
``docs/checkpoints.md`` describes it byte by byte.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from typing import Annotated, Any, Literal, Self

import pydantic

from ziggurat.checkpoint.format.quantise import Bits as Bits
from ziggurat.checkpoint.format.quantise import row_bytes
from ziggurat.core.errors import RunFolderError, shorten
from ziggurat.core.schema import duplicates
from ziggurat.core.untrusted import Damage, file_name, parse_json

FORMAT_VERSION = 2
MANIFEST_FILE = "manifest.json"

Kind = Literal["full", "delta"]
WEIGHT = "weight"
"""Name of a table's weights among a block's tensors; the others are optimizer states."""


class NewerFormat(RunFolderError):
    """The manifest is of a format that this version does not know."""


Count = Annotated[int, pydantic.Strict(), pydantic.Field(ge=0, lt=2**48)]
"""A number of rows, bytes, columns or steps, and the id of a row."""


def _plain_name(name: str) -> str:
    if name == MANIFEST_FILE:
        raise ValueError("names the manifest itself")
    return file_name(name, "the manifest", Damage(RunFolderError, ""))


class _Entry(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Reference(_Entry):
    """Identifies one write of a checkpoint."""

    step: Count
    id: str


class RowBlock(_Entry):
    """Some rows of a table, stored as tensors ``INDEX.NAME`` of a file.

    Attributes:
        index: index of the block in its file; ``number`` in JSON and in the constructor.
        table: name of the table.
        rows: number of rows.
        first: id of the first row if the ids are consecutive; None: the file has the ids (``INDEX.ids``).
        low, high: the least and the greatest id.
        columns: the first column and the number of columns.
        bits: bits per value of each tensor, ``weight`` and the optimizer states; 32 means not quantised.
    """

    index: Count = pydantic.Field(alias="number")
    table: str
    rows: Count
    first: Count | None
    low: Count
    high: Count
    columns: tuple[Count, Count]
    bits: dict[str, Bits]


class ManifestFile(_Entry):
    """A safetensors file of a checkpoint.

    Attributes:
        name: name in the checkpoint's folder.
        bytes: size of the file.
        sha256: SHA-256 of its content.
        rank: the rank that wrote it.
        blocks: the rows in it. A file without blocks holds all other tensors, as ``GROUP/NAME``.
    """

    name: Annotated[str, pydantic.AfterValidator(_plain_name)]
    bytes: Count
    sha256: str
    rank: Count
    blocks: tuple[RowBlock, ...] = ()


class TableShape(_Entry):
    """The shape of a table: its rows, their width, and the width of each optimizer state (0: one number per row)."""

    rows: Count
    dim: Count
    states: dict[str, Count]

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of the whole tensor ``weight``, or of a state."""
        width = self.dim if name == WEIGHT else self.states[name]
        return (self.rows, width) if width else (self.rows,)


class Manifest(_Entry):
    """A checkpoint without its tensors.

    Attributes:
        id: random id of this write; another write of the same step has another id.
        kind: ``full``, or ``delta``: rows that differ from those of ``needs``.
        step: optimizer steps done.
        needs: the checkpoints to read before a delta: the full one first, then deltas in order.
        policy: the policy that chose the kind.
        bits: bits per value requested for rows; a block may use more.
        world_size: number of ranks that wrote it.
        tables: name -> shape of every table.
        files: the files of this checkpoint alone.
        state: progression, schedule and other state of the training, as JSON.
        made: when it was written, ISO 8601 in UTC.
        versions: versions of the libraries that wrote it.
        plan: the placement of the tables' shards, as in ``plan.json``.
        config: the training's config, as in ``config.yaml``.
        run_id: id of the run that wrote it; empty: not recorded, as in earlier versions.
    """

    id: str
    kind: Kind
    step: Count
    needs: tuple[Reference, ...]
    policy: str
    bits: Bits
    world_size: Annotated[Count, pydantic.Field(ge=1)]
    tables: dict[str, TableShape]
    files: tuple[ManifestFile, ...]
    state: dict[str, Any]
    made: str
    versions: dict[str, str]
    plan: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    run_id: str = ""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        """Checks that values do not contradict each other.

        Blocks are parts of tables and fit into their files, so that nothing larger is ever allocated.
        """
        steps = [need.step for need in self.needs]
        if (
            (self.kind == "full") != (not steps)
            or steps != sorted({*steps} - {self.step})
            or max(steps, default=0) > self.step
        ):
            raise ValueError(f"a {self.kind} checkpoint of step {self.step} cannot need those of steps {steps[:8]}")
        if not self.files:
            raise ValueError("lists no files, but every checkpoint has some")
        if twice := duplicates(file.name for file in self.files):
            raise ValueError(f"lists the file {twice[0]!r} twice")
        for file in self.files:
            if file.rank >= self.world_size:
                raise ValueError(f"file {file.name!r} is of rank {file.rank}, and {self.world_size} ranks wrote it")
            if len({block.index for block in file.blocks}) < len(file.blocks):
                raise ValueError(f"file {file.name!r} lists two blocks of one number")
            size = 0
            for block in file.blocks:
                shape = self.tables.get(block.table)
                if shape is None:
                    raise ValueError(f"file {file.name!r} has rows of the unknown table {block.table!r}")
                fault = _fault(block, shape)
                if fault:
                    raise ValueError(f"file {file.name!r}, block {block.index} of table {block.table!r}: {fault}")
                size += _stored_bytes(block, shape)
            if size > file.bytes:
                raise ValueError(f"file {file.name!r} has {file.bytes:,} bytes, and its blocks need {size:,}")
        return self

    @property
    def reference(self) -> Reference:
        return Reference(step=self.step, id=self.id)

    @property
    def bytes(self) -> int:
        """Size of its own files, without those of ``needs``."""
        return sum(file.bytes for file in self.files)

    def to_bytes(self) -> bytes:
        """Returns the file's content: UTF-8 JSON with a checksum of its value ``manifest``."""
        values = _to_json_floats(self.model_dump(by_alias=True, exclude=None if self.run_id else {"run_id"}))
        whole = {"format_version": FORMAT_VERSION, "sha256": _digest(values), "manifest": values}
        return (json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, place: str) -> Manifest:
        """Parses the content that :meth:`to_bytes` made.

        Raises:
            RunFolderError: it is damaged, of another version, or not a manifest; the message names ``place``.
        """
        damage = Damage(RunFolderError, _HINT)
        whole = parse_json(data, place, damage)
        if not isinstance(whole, dict) or "format_version" not in whole:
            raise damage.of(place, "not a manifest of a checkpoint")
        version, values = whole["format_version"], whole.get("manifest")
        if version != FORMAT_VERSION:
            raise NewerFormat(
                f"{place}: checkpoint format {shorten(version)}, this ziggurat reads 1 and {FORMAT_VERSION}",
                "use the ziggurat version in the run's environment.json",
            )
        if not isinstance(values, dict) or whole.get("sha256") != _digest(values):
            raise damage.of(place, "its content differs from its checksum")
        try:
            found = cls.model_validate(_from_json_floats(values))
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = "".join(f"{step}." for step in first["loc"])[:-1]
            message = first["msg"].removeprefix("Value error, ")
            raise damage.of(place, f"{path}: {message}" if path else message) from None
        if found.kind == "full":
            _check_complete(found, place)
        return found


def _check_complete(manifest: Manifest, place: str) -> None:
    """Checks that a full checkpoint holds as many values per table and state as its shape requires.

    Args:
        manifest: of a full checkpoint.
        place: where it was read, for messages.

    Raises:
        RunFolderError: a table or a state of its optimizer has too few or too many values; the message names it.
    """
    numbers: dict[tuple[str, str], int] = defaultdict(int)
    for file in manifest.files:
        for block in file.blocks:
            for tensor in block.bits:
                numbers[block.table, tensor] += block.rows * block.columns[1]
    for name, shape in manifest.tables.items():
        for tensor in (WEIGHT, *shape.states):
            found, expected = (
                numbers[name, tensor],
                shape.rows * (shape.dim if tensor == WEIGHT else shape.states[tensor]),
            )
            if tensor != WEIGHT and not shape.states[tensor]:  # one number for all columns of a row
                expected = shape.rows * shape.dim
            if found != expected:
                of = f"table {name!r}" if tensor == WEIGHT else f"state {tensor!r} of table {name!r}"
                raise RunFolderError(
                    f"{place}: its files have {found:,} numbers of {of}, which has {expected:,}", _HINT
                )


_HINT = (
    "take another checkpoint: `ziggurat checkpoint verify` says which are intact; delete this one's folder to do "
    "without it"
)


def _digest(values: Any) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _to_json_floats(value: Any) -> Any:
    """Replaces NaN and infinities, which JSON lacks, by objects such as ``{"float": "inf"}``, at any depth."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, dict):
        return {str(key): _to_json_floats(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_floats(each) for each in value]
    return value


def _from_json_floats(value: Any) -> Any:
    """Reverses :func:`_to_json_floats`."""
    if isinstance(value, dict):
        if value.keys() == {"float"} and value["float"] in {"inf", "-inf", "nan"}:
            return float(value["float"])
        return {key: _from_json_floats(each) for key, each in value.items()}
    return [_from_json_floats(each) for each in value] if isinstance(value, list) else value


def _fault(block: RowBlock, shape: TableShape) -> str | None:
    """Returns why a block cannot be a part of a table of this shape; None if it can."""
    if block.high >= shape.rows or block.low > block.high:
        return f"its ids {block.low:,} to {block.high:,} are not within {shape.rows:,} rows"
    if block.first is not None and (block.first != block.low or block.high - block.first + 1 != block.rows):
        return f"{block.rows:,} rows from {block.first:,} on do not end at {block.high:,}"
    if not block.columns[1] or sum(block.columns) > shape.dim:
        return f"{block.columns[1]} columns from {block.columns[0]} on are not within {shape.dim}"
    unknown = block.bits.keys() - {WEIGHT, *shape.states}
    return f"the table has no state {min(unknown)!r}" if unknown else None


def _stored_bytes(block: RowBlock, shape: TableShape) -> int:
    """Returns the bytes of a block's numbers and ids in its file."""
    width = sum(
        row_bytes(block.columns[1] if name == WEIGHT or shape.states[name] else 1, bits)
        for name, bits in block.bits.items()
    )
    ids = 0 if block.first is not None else 4 if block.high < 2**31 else 8
    return block.rows * (width + ids)
