"""A warm start copies each row to the row of the same value, for any shard, from checkpoints of both formats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.checkpoint.checkpoint_kit import Table, saver, write_legacy_checkpoint
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.reader import CheckpointReader
from ziggurat.features.matching import RowMatch
from ziggurat.parallel.tensor_slices import TensorSlice
from ziggurat.training.warm_start import rows as warm_rows
from ziggurat.training.warm_start.rows import RowTransfer, take_rows

ROWS, DIM = 60, 7


@dataclass(frozen=True)
class Saved:
    """Two checkpoints of the same rows: one with a delta, and one of format 1."""

    checkpoints: list[CheckpointReader]
    weight_RD: Tensor
    sum_R: Tensor


@pytest.fixture(scope="module", autouse=True)
def _small_chunks() -> Iterator[None]:
    """Reads weights in chunks of three rows."""
    previous, warm_rows.CHUNK_BYTES = warm_rows.CHUNK_BYTES, 3 * 4 * DIM
    yield
    warm_rows.CHUNK_BYTES = previous


@pytest.fixture(scope="module")
def saved_rows(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    root: Path = tmp_path_factory.mktemp("saved")
    table, folder = Table(rows=ROWS, dim=DIM), CheckpointFolder(root / "new")
    with saver(folder, table, policy="consecutive") as saving:
        saving.save(1, {}, {})
        table.change(9)
        saving.save(2, {}, {})
    groups = {"tables": {"item": table.weight_RD}, "table_optimizer": {"item/sum": table.sum_R}}
    write_legacy_checkpoint(root / "old/step-00000002", groups, {})
    folders = (folder, CheckpointFolder(root / "old"))
    return Saved([each.load(2) for each in folders], table.weight_RD.clone(), table.sum_R.clone())


def initial_rows(ids: Tensor, columns: slice) -> Tensor:
    """Returns the initial values of the rows of these ids."""
    return (1000 + ids.unsqueeze(1) * DIM + torch.arange(DIM))[:, columns].float()


@st.composite
def cases(draw: st.DrawFn) -> tuple[RowMatch, Tensor, bool, slice]:
    """Draws a match, the ids of a shard's rows, whether the shard reorders them, and its columns."""
    size = draw(st.integers(1, 80))
    if draw(st.booleans()):
        rows = np.array(draw(st.lists(st.integers(-1, ROWS - 1), min_size=size, max_size=size)), np.int64)
    else:  # consecutive rows, as in two vocabularies that are nearly the same
        rows = np.arange(size) - draw(st.integers(-5, 5))
        rows[(rows < 0) | (rows >= ROWS)] = -1
    first = draw(st.integers(0, size - 1))
    ids = torch.arange(first, draw(st.integers(first, size)))
    ordered = draw(st.booleans())
    if ordered:
        ids = torch.tensor(draw(st.permutations(range(size))))[ids]
    first_column = draw(st.integers(0, DIM - 1))
    columns = slice(first_column, draw(st.integers(first_column + 1, DIM)))
    return RowMatch(size, ROWS, int((rows >= 0).sum()), rows), ids, ordered, columns


@settings(max_examples=150, deadline=None)
@given(cases())
def test_a_shard_equals_copying_row_by_row(saved_rows: Saved, case: tuple[RowMatch, Tensor, bool, slice]) -> None:
    match, ids_L, ordered, columns = case
    expected, sums = initial_rows(ids_L, columns), torch.zeros(len(ids_L))
    for place, row in enumerate(match.of(ids_L.numpy())):
        if row >= 0:
            expected[place], sums[place] = saved_rows.weight_RD[row, columns], saved_rows.sum_R[row]
    first, rows = (0, ids_L.int()) if ordered else (int(ids_L[0]) if len(ids_L) else 0, None)
    for saved in saved_rows.checkpoints:
        live, state = initial_rows(ids_L, columns), torch.zeros(len(ids_L))
        weight = TensorSlice("item", live, (match.size, DIM), (first, columns.start), rows)
        sources = [
            RowTransfer("tables", "item", ROWS, weight, lambda ids: initial_rows(ids, columns)),
            RowTransfer(
                "table_optimizer", "item/sum", ROWS, TensorSlice("item/sum", state, (match.size,), (first,), rows)
            ),
        ]
        take_rows(saved, [(sources, match)])
        assert torch.equal(live, expected)
        assert torch.equal(state, sums)
        if ordered:
            continue
        live, state = initial_rows(ids_L, columns), torch.zeros(len(ids_L))
        tensor_slices = (
            replace(each.tensor_slice, tensor=tensor) for each, tensor in zip(sources, (live, state), strict=True)
        )
        through_sinks = [
            replace(each, tensor_slice=_with_sink(tensor_slice))
            for each, tensor_slice in zip(sources, tensor_slices, strict=True)
        ]
        take_rows(saved, [(through_sinks, match)])
        assert torch.equal(live, expected)
        assert torch.equal(state, sums)


class _Sink:
    """A sink that writes into a tensor, in place of a tensor that is not in memory."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def put(self, rows_L: Tensor, first_column: int, values: Tensor) -> None:
        assert len(rows_L.unique()) == len(rows_L)
        if self._tensor.ndim == 1:
            self._tensor[rows_L] = values
        else:
            self._tensor[rows_L, first_column : first_column + values.shape[1]] = values

    def flush(self) -> None: ...


def _with_sink(tensor_slice: TensorSlice) -> TensorSlice:
    return replace(tensor_slice, tensor=tensor_slice.tensor.to("meta"), sink=_Sink(tensor_slice.tensor))


def test_rows_that_keep_their_numbers(saved_rows: Saved) -> None:
    for saved in saved_rows.checkpoints:
        live = torch.full((4, DIM), -1.0)
        source = RowTransfer("tables", "item", ROWS, TensorSlice("item", live, (62, DIM), (58, 0)))
        take_rows(saved, [([source], RowMatch(62, ROWS, ROWS))])
        assert torch.equal(live[:2], saved_rows.weight_RD[58:])
        assert bool((live[2:] == -1).all())
        live = torch.full((4, DIM), -1.0)
        tensor_slice = _with_sink(TensorSlice("item", live, (62, DIM), (58, 0)))
        take_rows(saved, [([replace(source, tensor_slice=tensor_slice)], RowMatch(62, ROWS, ROWS))])
        assert torch.equal(live[:2], saved_rows.weight_RD[58:])
        assert bool((live[2:] == -1).all())
        outside = torch.full((2, DIM), -1.0)
        take_rows(
            saved,
            [
                (
                    [replace(source, tensor_slice=TensorSlice("item", outside, (64, DIM), (62, 0)))],
                    RowMatch(64, ROWS, ROWS),
                )
            ],
        )
        assert bool((outside == -1).all())
