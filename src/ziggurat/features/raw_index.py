"""Where the rows of each split lie in raw logs: one pass over the files, so that any block can be made on demand.

The files are cut into *pieces* of about 2 MiB. Of each piece the index keeps where it begins and ends and how many rows
of each split it holds; of each row, its split. A block of the prepared dataset is so many consecutive rows of a split
in reading order; knowing the pieces that hold them is all it takes to make it.

Layout of an index folder::

    index.json        fingerprint of configs and files, and what was refused
    pieces.npy        int64 (pieces, 10): source; start and end as file, offset, line; rows of each split
    splits.npy        uint8 (rows,): each good row's split, in reading order
    quarantine.jsonl  refused rows, where ``on_bad_row`` sets them aside
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError
from ziggurat.core.files import atomic_folder, write_json
from ziggurat.core.progress import Progress
from ziggurat.core.schema import TIME_COLUMN
from ziggurat.data.encoded.dataset import SPLITS
from ziggurat.data.encoded.split import Assignment
from ziggurat.data.readers.blocks import Position
from ziggurat.data.readers.quarantine import Quarantine
from ziggurat.data.readers.reader import RawSource
from ziggurat.features.bracket_check import check_brackets
from ziggurat.features.checks import CheckedRows, check_rows
from ziggurat.features.config import DataConfig, FeatureConfig
from ziggurat.features.preparation.block_batching import SplitSource, bytes_before
from ziggurat.features.preparation.prepare import QUARANTINE, open_sources
from ziggurat.features.preparation.splitting import assign, split_columns
from ziggurat.features.preparation_plan import Preparation

INDEX_VERSION = 1
PIECE_BYTES = 2 * 2**20
"""Text of a piece: a block of 65,536 rows then touches some ten of them, and reads little that it does not need."""

_PLACE_COLUMNS = 7


@dataclass(frozen=True, slots=True)
class RawIndex:
    """An index, opened.

    Attributes:
        fingerprint: of the configs and files that it was made from.
        refused: rows, and a line for each kind of refusal.
        pieces, splits: the arrays of the files of these names; the latter memory-mapped.
    """

    fingerprint: str
    refused: dict[str, Any]
    pieces: npt.NDArray[np.int64]
    splits: Assignment

    @classmethod
    def open(cls, folder: Path) -> RawIndex:
        """The index that :func:`index_raw` wrote."""
        values = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        splits = np.load(folder / "splits.npy", mmap_mode="r")
        return cls(values["fingerprint"], values["quarantined"], np.load(folder / "pieces.npy"), splits)

    def rows(self, split: int | None = None) -> npt.NDArray[np.int64]:
        """Rows of each piece: of one split, or of all."""
        counts = self.pieces[:, _PLACE_COLUMNS:]
        return counts.sum(axis=1) if split is None else counts[:, split]

    def place(self, piece: int) -> tuple[int, Position, Position]:
        """Source, start and end of a piece."""
        source, *numbers = (int(value) for value in self.pieces[piece, :_PLACE_COLUMNS])
        return source, Position(*numbers[:3]), Position(*numbers[3:])


def index_raw(
    data: DataConfig,
    features: Sequence[FeatureConfig],
    folder: Path,
    progress: Progress,
    piece_bytes: int = PIECE_BYTES,
) -> None:
    """Write the index of the raw files into ``folder``; nothing happens when it is there already.

    Raises:
        ConfigError: configs that contradict each other.
        DataError: files that cannot be read as declared; a bad row under ``on_bad_row: fail``; no training rows.
    """
    sources = open_sources(data, features, piece_bytes)
    plan = Preparation.plan(data, features, [item.source.fingerprint() for item in sources])
    if _is_indexed(folder, plan.fingerprint):
        return
    with atomic_folder(folder) as place, Quarantine(place / QUARANTINE, data.on_bad_row) as quarantine:
        progress.start("index", sum(item.source.total_bytes for item in sources), "bytes")
        pieces = _Pieces()
        for piece in _pieces(plan, sources):
            quarantine.add(piece.checked.bad)
            pieces.add(piece)
            progress.advance(piece.done_bytes, rows=float(pieces.total))
        if not pieces.total:
            raise DataError("data: no usable rows", "check data.source and the columns' types")
        splits = assign(data.split, pieces)
        counts = [np.bincount(each, minlength=len(SPLITS)) for each in splits]
        np.save(place / "pieces.npy", np.hstack([np.array(pieces.places), np.array(counts)]).astype(np.int64))
        np.save(place / "splits.npy", np.concatenate(splits))
        refused = {"rows": quarantine.total, "summary": quarantine.summary()}
        values = {"version": INDEX_VERSION, "fingerprint": plan.fingerprint, "quarantined": refused}
        write_json(place / "index.json", values)
        progress.finish(f"{pieces.total:,} rows")


@dataclass(frozen=True, slots=True)
class _Piece:
    """What the pass sees of a piece: its place, its rows, and what their splits follow from."""

    place: tuple[int, ...]
    checked: CheckedRows
    decides: dict[str, npt.NDArray[Any]]
    done_bytes: int


@dataclass(slots=True)
class _Pieces:
    """The pieces that hold rows, as :func:`assign` wants them."""

    places: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    sizes: list[int] = field(default_factory=list[int])
    decides: list[dict[str, npt.NDArray[Any]]] = field(default_factory=list[dict[str, npt.NDArray[Any]]])
    total: int = 0

    def add(self, piece: _Piece) -> None:
        rows = len(piece.checked.rows)
        if rows:
            self.places.append(piece.place)
            self.sizes.append(rows)
            self.decides.append(piece.decides)
            self.total += rows

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        return np.cumsum([0, *self.sizes[:-1]], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.sizes)

    def target(self, part: int, name: str) -> npt.NDArray[Any]:
        return self.decides[part][name]


def _pieces(plan: Preparation, sources: Sequence[SplitSource]) -> Iterator[_Piece]:
    before = 0
    for number, item in enumerate(sources):
        start = Position()
        for position, block in enumerate(item.source.blocks()):
            if position == 0:
                check_brackets(block.table, plan.features)
            start = _where(item.source, start, block.file)
            checked = check_rows(block, plan.targets, plan.tables)
            times = {name: values for name, values in checked.targets.items() if name == TIME_COLUMN}
            decides = times | split_columns(plan.data.split, item.split, block, checked)
            place = (number, start.file, start.offset, start.line, block.end.file, block.end.offset, block.end.line)
            yield _Piece(place, checked, decides, before + bytes_before(item.source, block.file) + block.source_bytes)
            start = block.end
        before += item.source.total_bytes


def _where(source: RawSource, reached: Position, file: str) -> Position:
    """Where a block of ``file`` begins, the one before having ended at ``reached``: files without rows are passed."""
    number = next(i for i in range(reached.file, len(source.paths)) if str(source.paths[i]) == file)
    return reached if number == reached.file else Position(number)


def _is_indexed(folder: Path, fingerprint: str) -> bool:
    try:
        values = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    return (values["version"], values["fingerprint"]) == (INDEX_VERSION, fingerprint)
