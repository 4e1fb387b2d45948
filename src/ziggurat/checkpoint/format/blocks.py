"""Encodes rows of tables as the bytes of safetensors files, and decodes them.

A checkpoint's rows are split into files of about 32 MiB. Each file is made in memory, so that its checksum is that of
the data meant to be written. A restore reads only files that have rows it needs. Writing and restoring each keep at
most one file in memory.

Shape legend: U rows of a block, D columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ziggurat.checkpoint.format.manifest import WEIGHT, Bits, ManifestFile, RowBlock, TableShape
from ziggurat.checkpoint.format.quantise import Method, dequantise, finite_rows, quantise
from ziggurat.core.errors import DataError, RunFolderError

FILE_BYTES = 32 * 2**20
"""A file is written once its tensors have this size."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """Some rows of a table and of its optimizer states.

    Attributes:
        table: name of the table.
        ids_U: the rows' ids in the table, int64.
        columns: the first column and the number of columns; the same for states with a value per column.
        tensors: ``weight`` (U, D), and each state (U,) or (U, D).
    """

    table: str
    ids_U: Tensor
    columns: tuple[int, int]
    tensors: Mapping[str, Tensor]


class FileWriter:
    """Collects rows and writes them to files.

    Args:
        write: writes a file, given its name and content, into the checkpoint's folder.
        name: returns the name of the n-th file.
        rank: this rank.
        bits, method: quantisation of weights. Optimizer states are never quantised: updates are divided by the square
            roots of some, and quantising would replace many much smaller values by the lowest code's value, or make
            them negative.

    Attributes:
        files: manifest entries of the files written.
    """

    def __init__(
        self, write: Callable[[str, bytes], None], name: Callable[[int], str], rank: int, bits: Bits, method: Method
    ) -> None:
        self.files: list[ManifestFile] = []
        self._write, self._name, self._rank = write, name, rank
        self._bits: Bits = bits
        self._method: Method = method
        self._tensors: dict[str, Tensor] = {}
        self._blocks: list[RowBlock] = []
        self._size = 0

    def add(self, rows: TableRows) -> None:
        """Adds rows, whose tensors must not change before :meth:`flush`."""
        count, index = len(rows.ids_U), len(self._blocks)
        if not count:
            return
        low, high = int(rows.ids_U.min()), int(rows.ids_U.max())
        bits: dict[str, Bits] = {}
        for name, tensor in rows.tensors.items():
            bits[name], parts = self._encode(name, tensor)
            self._put({f"{index}.{name}.{part}": each for part, each in parts.items()})
        gapless = high - low + 1 == count and bool((rows.ids_U[1:] > rows.ids_U[:-1]).all())
        if not gapless:
            self._put({f"{index}.ids": rows.ids_U.int() if high < 2**31 else rows.ids_U})
        self._blocks.append(
            RowBlock(
                number=index,
                table=rows.table,
                rows=count,
                first=low if gapless else None,
                low=low,
                high=high,
                columns=rows.columns,
                bits=bits,
            )
        )
        if self._size >= FILE_BYTES:
            self.flush()

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Writes a file of these tensors alone, without rows."""
        self.flush()
        self._put(tensors)
        self._close()

    def flush(self) -> None:
        """Writes the rows collected so far, if any."""
        if self._blocks:
            self._close()

    def _encode(self, name: str, tensor: Tensor) -> tuple[Bits, dict[str, Tensor]]:
        """Returns the bits used and the encoded tensors by suffix."""
        bits: Bits = self._bits if name == WEIGHT else 32
        if bits == 32 or not bool(finite_rows(tensor).all()):  # NaN and infinities cannot be quantised
            return 32, {"rows": tensor}
        return bits, quantise(tensor, bits, self._method)

    def _put(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors |= {name: tensor.contiguous() for name, tensor in tensors.items()}
        self._size += sum(tensor.nbytes for tensor in tensors.values())

    def _close(self) -> None:
        data, name = save(self._tensors), self._name(len(self.files))
        self._write(name, data)
        digest = hashlib.sha256(data).hexdigest()
        self.files.append(
            ManifestFile(name=name, bytes=len(data), sha256=digest, rank=self._rank, blocks=tuple(self._blocks))
        )
        self._tensors, self._blocks, self._size = {}, [], 0


def check_file(file: ManifestFile, data: bytes, place: str) -> None:
    """Checks that a file's content is what was written.

    Raises:
        RunFolderError: it has another size or checksum; the message names ``place``.
    """
    if len(data) != file.bytes:
        problem = f"{len(data):,} bytes, and {file.bytes:,} were written"
    elif hashlib.sha256(data).hexdigest() != file.sha256:
        problem = "its SHA-256 differs from the one recorded when it was written"
    else:
        return
    raise RunFolderError(f"{place}: {problem}; it has {contents_in_words(file)}", DAMAGED)


def contents_in_words(file: ManifestFile) -> str:
    """Returns a phrase that names the content of a checkpoint's file, such as "rows of table 'user'"."""
    tables = list(dict.fromkeys(block.table for block in file.blocks))
    named = ", ".join(map(repr, tables[:4])) + (f" and {len(tables) - 4} more" if len(tables) > 4 else "")
    return f"rows of table{'s' * (len(tables) > 1)} {named}" if tables else "the tensors other than table rows"


DAMAGED = (
    "restore the file, or use another checkpoint by its step: `ziggurat checkpoint verify` says which are intact; "
    "delete the later folders to resume from the newest intact one"
)


def tensors_in(data: bytes, place: str) -> dict[str, Tensor]:
    """Returns the tensors of a safetensors file.

    Raises:
        RunFolderError: ``data`` is not a safetensors file; the message names ``place``.
    """
    try:
        return load(data)
    except (SafetensorError, KeyError, ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise RunFolderError(f"{place}: cannot be read: {error}", DAMAGED) from error


def rows_in(
    block: RowBlock, shape: TableShape, tensors: Mapping[str, Tensor], wanted: set[str], place: str
) -> TableRows:
    """Decodes the rows of a block.

    Args:
        block: the manifest's entry of the block.
        shape: the shape of its table.
        tensors: all tensors of its file.
        wanted: names of the tensors to decode, if the block has them: ``weight`` and optimizer states.
        place: the file, for messages.

    Raises:
        RunFolderError: the file's tensors are not those that the block has according to the manifest.
    """
    index = block.index
    if block.first is None:
        ids_U = _ids(block, tensors.get(f"{index}.ids"), place)
    else:
        ids_U = torch.arange(block.first, block.first + block.rows)
    decoded: dict[str, Tensor] = {}
    for name, bits in block.bits.items():
        if name in wanted:
            parts = with_prefix(tensors, f"{index}.{name}.")
            per_row = name != WEIGHT and shape.states[name] == 0
            size = (block.rows,) if per_row else (block.rows, block.columns[1])
            decoded[name] = _decoded(block, name, size, bits, parts, place)
    return TableRows(block.table, ids_U, block.columns, decoded)


def _ids(block: RowBlock, found: Tensor | None, place: str) -> Tensor:
    if found is None or found.dtype not in {torch.int32, torch.int64} or found.shape != (block.rows,):
        raise _other_tensor(block, "ids", found, f"{block.rows} whole numbers", place)
    if block.rows and (int(found.min()) < block.low or int(found.max()) > block.high):
        raise _other_tensor(block, "ids", found, f"ids from {block.low} to {block.high}", place)
    return found.long()


def _decoded(
    block: RowBlock, name: str, size: tuple[int, ...], bits: Bits, parts: Mapping[str, Tensor], place: str
) -> Tensor:
    try:
        rows = parts.get("rows") if bits == 32 else dequantise(parts, bits, block.columns[1])
    except DataError as error:
        raise RunFolderError(f"{place}: block {block.index}: {error.problem}", DAMAGED) from None
    if rows is None or rows.dtype != torch.float32 or rows.shape != size:
        raise _other_tensor(block, name, rows, f"float32 {size}", place)
    return rows


def _other_tensor(block: RowBlock, name: str, found: Tensor | None, expected: str, place: str) -> RunFolderError:
    received = "nothing" if found is None else f"{str(found.dtype).removeprefix('torch.')} {tuple(found.shape)}"
    return RunFolderError(
        f"{place}: block {block.index} of table {block.table!r}: {name} is {received}, expected {expected}", DAMAGED
    )


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Returns the tensors whose names start with ``prefix``, with it removed from their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
