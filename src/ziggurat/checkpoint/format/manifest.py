"""The manifest of a checkpoint: what its files hold, and how to tell that they are still what was written.

It is written last and makes the folder a checkpoint; a process that dies before leaves none. ``docs/checkpoints.md``
describes it byte by byte.
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
"""Name of a table's rows among a block's tensors; the others are optimizer states."""


class NewerFormat(RunFolderError):
    """A manifest of a format that this version does not know."""


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Reference(_Part):
    """A checkpoint that another one needs."""

    step: int
    id: str


class RowBlock(_Part):
    """Some rows of a table, as tensors ``NUMBER.NAME`` of a file.

    Attributes:
        number: of the block in its file.
        table: its name.
        rows: how many.
        first: the first row, where they lie without gaps; None: the file has their ids (``NUMBER.ids``).
        low, high: the least and the greatest id.
        columns: the first column, and how many.
        bits: of each tensor, ``weight`` and the optimizer's states: 32 is as it was.
    """

    number: int
    table: str
    rows: int
    first: int | None
    low: int
    high: int
    columns: tuple[int, int]
    bits: dict[str, Bits]


class ManifestFile(_Part):
    """A safetensors file of a checkpoint.

    Attributes:
        name: within the checkpoint's folder.
        bytes: its size.
        sha256: of its content.
        rank: who wrote it.
        blocks: rows in it; a file without any holds everything else, as ``GROUP/NAME``.
    """

    name: str
    bytes: int
    sha256: str
    rank: int
    blocks: tuple[RowBlock, ...] = ()


class TableShape(_Part):
    """What a checkpoint has of a table: its rows, their width, and the width of each state (0: one number a row)."""

    rows: int
    dim: int
    states: dict[str, int]

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole tensor: ``weight``, or a state."""
        width = self.dim if name == WEIGHT else self.states[name]
        return (self.rows, width) if width else (self.rows,)


class Manifest(_Part):
    """A checkpoint without its tensors.

    Attributes:
        id: of this very write; another write of the same step has another.
        kind: ``full``, or ``delta``: rows that differ from those of ``needs``.
        step: optimizer steps done.
        needs: of a delta, the checkpoints to read before it: the full one first, then deltas in order.
        policy: that chose the kind.
        bits: asked for; a block says its own.
        world_size: ranks that wrote it.
        tables: by name.
        files: of this checkpoint alone.
        state: progression, schedule and what else training keeps, as JSON.
        made: when, ISO 8601 in UTC.
        versions: of the libraries that wrote it.
        plan: where the tables' shards lay, as ``plan.json`` has it.
        config: what was trained, as ``config.yaml`` has it.
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
        """Of its files, without those of ``needs``."""
        return sum(file.bytes for file in self.files)

    def to_bytes(self) -> bytes:
        """The file's content: UTF-8 JSON, with a checksum of all that is in ``manifest``."""
        values = _finite(self.model_dump())
        whole = {"format_version": FORMAT_VERSION, "sha256": _digest(values), "manifest": values}
        return (json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, place: str) -> Manifest:
        """What :meth:`to_bytes` made.

        Raises:
            RunFolderError: damaged, of another version, or something else; ``place`` is named.
        """
        try:
            whole = json.loads(data.decode())
            version, digest, values = whole["format_version"], whole.get("sha256"), whole.get("manifest")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunFolderError(f"{place}: no manifest of a checkpoint: {error}", _HINT) from None
        if version != FORMAT_VERSION:
            raise NewerFormat(
                f"{place}: checkpoint format {version!r}, this ziggurat reads 1 and {FORMAT_VERSION}",
                "use the ziggurat version in the run's environment.json",
            )
        if not isinstance(values, dict) or digest != _digest(values):
            raise RunFolderError(f"{place}: its content differs from its checksum", _HINT)
        try:
            return cls.model_validate(_infinite(values))
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


def _finite(value: Any) -> Any:
    """JSON has no nan and no infinity: ``{"float": "inf"}`` stands for one."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def _infinite(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"float"} and isinstance(value["float"], str):
            return float(value["float"])
        return {key: _infinite(each) for key, each in value.items()}
    return [_infinite(each) for each in value] if isinstance(value, list) else value
