"""Rows that are read by whole blocks: the right ones, each block once, in bounds; and errors that name a block."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.storage.storage_kit import METHODS, make_transfers
from ziggurat.storage.async_io import TransferError
from ziggurat.storage.row_reads import RowReads, turns

STRIDE = 512
ROWS = 5_000
Rows = npt.NDArray[np.uint8]


class File:
    """A file of rows in blocks."""

    def __init__(self, path: Path, width: int) -> None:
        self.per_block = STRIDE // width
        self.rows: Rows = np.random.default_rng(width).integers(0, 256, (ROWS, width), np.uint8)
        blocks = np.full((-(-ROWS // self.per_block), STRIDE), 99, np.uint8)
        for row, content in enumerate(self.rows):
            at = row % self.per_block * width
            blocks[row // self.per_block, at : at + width] = content
        path.write_bytes(blocks.tobytes())
        self.descriptor = os.open(path, os.O_RDONLY)

    def wanted(self, ids: npt.NDArray[np.int64], places: npt.NDArray[np.int64], most: int = 128) -> RowReads:
        """Returns the reads of the rows at some places; other rows of the result are 7."""
        out = np.full((len(ids), self.rows.shape[1]), 7, np.uint8)
        by_id = places[np.argsort(ids[places], kind="stable")]
        return RowReads(self.descriptor, ids, by_id, out, self.per_block, STRIDE, most)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[File]]:
    found = [File(tmp_path / str(width), width) for width in (24, 72, 512)]
    yield found
    for each in found:
        os.close(each.descriptor)


@pytest.mark.parametrize("method", METHODS)
def test_rows_of_several_files_are_read_whatever_the_bounds(method: str, files: list[File]) -> None:
    transfers, random = make_transfers(method), np.random.default_rng(1)
    for turn in range(40):
        most_of, most = ((1, 1), (2, 5), (128, 256), (300, 1_000))[turn % 4]
        wanted: list[RowReads] = []
        for file in files:
            ids = random.integers(0, ROWS, int(random.integers(1, 700)))
            places = np.flatnonzero(random.random(len(ids)) < random.choice([0.0, 0.2, 1.0]))
            wanted.append(file.wanted(ids, places, most_of))
        counts = transfers.read_rows(wanted, most)
        for file, each, count in zip(files, wanted, counts, strict=True):
            expected = np.full_like(each.rows_LW, 7)
            expected[each.places_M] = file.rows[each.ids_L[each.places_M]]
            assert np.array_equal(each.rows_LW, expected)
            assert count <= len(np.unique(each.ids_L[each.places_M] // file.per_block)), "each block is read once"
            assert bool(count) == bool(len(each.places_M))
    transfers.close()


@pytest.mark.parametrize("method", METHODS)
def test_a_block_that_cannot_be_read_is_named_and_later_reads_work(method: str, files: list[File]) -> None:
    transfers = make_transfers(method)
    good, short, _ = files
    os.truncate(f"/proc/self/fd/{short.descriptor}", 40 * STRIDE + 100)
    ids = np.arange(0, ROWS, 21)  # no block is the neighbour of another
    with pytest.raises(TransferError) as caught:
        transfers.read_rows([good.wanted(ids, np.arange(len(ids))), short.wanted(ids, np.arange(len(ids)))], 256)
    assert (caught.value.errno, caught.value.file) == (errno.ENODATA, short.descriptor)
    assert caught.value.offset >= 40 * STRIDE
    assert caught.value.offset % STRIDE == 0
    again = [good.wanted(ids, np.arange(len(ids))), short.wanted(ids, np.arange(10))]
    transfers.read_rows(again, 256)
    assert np.array_equal(again[0].rows_LW, good.rows[ids])
    assert np.array_equal(again[1].rows_LW[:10], short.rows[ids[:10]])
    with pytest.raises(TransferError) as closed:
        transfers.read_rows([RowReads(10_000, ids, np.arange(9), np.zeros((len(ids), 24), np.uint8), 21, STRIDE, 4)], 9)
    assert closed.value.errno == errno.EBADF
    transfers.close()


def test_turns_take_the_longest_first_within_both_bounds() -> None:
    found = list(turns([5, 2, 9], [3, 3, 4], 6))
    assert found == [
        [(2, slice(0, 4)), (0, slice(0, 2))],
        [(2, slice(4, 8)), (0, slice(2, 4))],
        [(1, slice(0, 2)), (0, slice(4, 5)), (2, slice(8, 9))],
    ]
    assert list(turns([0, 0], [1, 1], 1)) == []
