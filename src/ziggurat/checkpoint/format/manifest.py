"""The manifest of a checkpoint: the content of its files, and checksums to verify them.

It is written last, and turns the folder into a checkpoint: a process that dies before leaves no checkpoint.
``docs/checkpoints.md`` describes it byte by byte.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Literal

import pydantic

from ziggurat.checkpoint.format.quantise import Bits as Bits
from ziggurat.core.errors import RunFolderError

FORMAT_VERSION = 2
MANIFEST_FILE = "manifest.json"

Kind = Literal["full", "delta"]
WEIGHT = "weight"
"""Name of a table's weights among a block's tensors; the others are optimizer states."""


class NewerFormat(RunFolderError):
    """The manifest is of a format that this version does not know."""


class _Entry(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Reference(_Entry):
    """Identifies one write of a checkpoint."""

    step: int
    id: str


class RowBlock(_Entry):
    """Some rows of a table, stored as tensors ``NUMBER.NAME`` of a file.

    Attributes:
        number: number of the block in its file.
        table: name of the table.
        rows: number of rows.
        first: id of the first row if the ids are consecutive; None: the file has the ids (``NUMBER.ids``).
        low, high: the least and the greatest id.
        columns: the first column and the number of columns.
        bits: bits per value of each tensor, ``weight`` and the optimizer states; 32 means not quantised.
    """

    number: int
    table: str
    rows: int
    first: int | None
    low: int
    high: int
    columns: tuple[int, int]
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

    name: str
    bytes: int
    sha256: str
    rank: int
    blocks: tuple[RowBlock, ...] = ()


class TableShape(_Entry):
    """The shape of a table: its rows, their width, and the width of each optimizer state (0: one number per row)."""

    rows: int
    dim: int
    states: dict[str, int]

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
    """

    id: str
    kind: Kind
    step: int
    needs: tuple[Reference, ...]
    policy: str
    bits: Bits
    world_size: int
    tables: dict[str, TableShape]
    files: tuple[ManifestFile, ...]
    state: dict[str, Any]
    made: str
    versions: dict[str, str]
    plan: dict[str, Any] | None = None
    config: dict[str, Any] | None = None

    @property
    def reference(self) -> Reference:
        return Reference(step=self.step, id=self.id)

    @property
    def bytes(self) -> int:
        """Size of its own files, without those of ``needs``."""
        return sum(file.bytes for file in self.files)

    def to_bytes(self) -> bytes:
        """Returns the file's content: UTF-8 JSON with a checksum of its value ``manifest``."""
        values = _to_json_floats(self.model_dump())
        whole = {"format_version": FORMAT_VERSION, "sha256": _digest(values), "manifest": values}
        return (json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, place: str) -> Manifest:
        """Parses the content that :meth:`to_bytes` made.

        Raises:
            RunFolderError: it is damaged, of another version, or not a manifest; the message names ``place``.
        """
        try:
            whole = json.loads(data.decode())
            version, digest, values = whole["format_version"], whole.get("sha256"), whole.get("manifest")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunFolderError(f"{place}: not a manifest of a checkpoint: {error}", _HINT) from None
        if version != FORMAT_VERSION:
            raise NewerFormat(
                f"{place}: checkpoint format {version!r}, this ziggurat reads 1 and {FORMAT_VERSION}",
                "use the ziggurat version in the run's environment.json",
            )
        if not isinstance(values, dict) or digest != _digest(values):
            raise RunFolderError(f"{place}: its content differs from its checksum", _HINT)
        try:
            return cls.model_validate(_from_json_floats(values))
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise RunFolderError(f"{place}: {where}: {first['msg']}", _HINT) from None


_HINT = (
    "take another checkpoint: `ziggurat checkpoint verify` says which are whole; delete this one's folder to do "
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
        if value.keys() == {"float"} and isinstance(value["float"], str):
            return float(value["float"])
        return {key: _from_json_floats(each) for key, each in value.items()}
    return [_from_json_floats(each) for each in value] if isinstance(value, list) else value
