"""Two real ranks write one checkpoint: it holds the parts of both, or is not written and both get the error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.ranks import run_ranks
from ziggurat.checkpoint.config import CheckpointsConfig
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format.manifest import MANIFEST_FILE, TableShape
from ziggurat.checkpoint.saver import Saver
from ziggurat.checkpoint.store.store import LocalStore
from ziggurat.checkpoint.writer import Best
from ziggurat.core.errors import DataError
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.dirty_rows import DirtyRows, TrackedShard
from ziggurat.parallel.tensor_slices import TensorSlice

ROWS, DIM = 300, 5
SPECS = {name: TableSpec(name, ROWS, DIM, (name,), "sum", {"name": "sgd"}, 0.01) for name in ("halved", "copied")}
SHAPES = {name: TableShape(rows=ROWS, dim=DIM, states={}) for name in SPECS}


class Refusing(LocalStore):
    """A store that is full for files whose names contain a word."""

    word = ""

    def write(self, folder: str, name: str, data: bytes) -> None:
        if self.word and self.word in name:
            raise DataError(f"{self.where(folder, name)}: no space left on device", "free some")
        super().write(folder, name, data)


def shard(name: str, rank: int) -> TrackedShard:
    """Returns the rank's half of a split table, or all of a replicated one; values are determined by the row's id."""
    first, rows = (rank * 150, 150) if name == "halved" else (0, ROWS)
    weight = torch.arange(first, first + rows).float().unsqueeze(1).repeat(1, DIM)
    tensor_slice = TensorSlice(name, weight, (ROWS, DIM), (first, 0))
    return TrackedShard(name, SPECS[name], tensor_slice, {}, DirtyRows({"": weight}))


def save_twice(rank: int, folder: Path, refused: tuple[int, str] | None) -> dict[str, Any]:
    """Saves a full checkpoint and a delta, for which the store of one rank may refuse files."""
    store = Refusing(folder)
    shards = [shard(name, rank) for name in SPECS]
    told = ""
    with Saver(CheckpointFolder(store), CheckpointsConfig(), shards, SHAPES, versions={}) as saving:
        for step in (1, 2):
            for each in shards:
                if step == 2:
                    rows = torch.tensor([3, 7])
                    each.dirty.touch(rows)
                    each.weight.tensor[rows] += 1000
                    if refused is not None and rank == refused[0]:
                        store.word = refused[1]
            dense = {"dense/w": torch.tensor(float(step))} if rank == 0 else None
            saving.save(step, dense, {"step": step}, best=Best("auc", 0.5))
            try:
                saving.finish()
            except ValueError as error:
                told = str(error)
        written = [(each.step, each.kind, each.rows) for each in saving.written]
    return {"written": written, "told": told}


def test_a_checkpoint_holds_the_rows_of_both_ranks(tmp_path: Path) -> None:
    first, second = run_ranks(2, save_twice, tmp_path, None)
    assert first == second
    assert first["written"] == [(1, "full", 2 * ROWS), (2, "delta", 6)]  # the replicated table counts once
    folder = CheckpointFolder(tmp_path)
    manifest = folder.manifest(2)
    assert manifest is not None
    assert manifest.world_size == 2
    assert {file.rank for file in manifest.files} == {0, 1}
    saved = folder.load("best")
    expected = torch.arange(ROWS).float().unsqueeze(1).repeat(1, DIM)
    halved, copied = expected.clone(), expected.clone()
    halved[[3, 7, 153, 157]] += 1000
    copied[[3, 7]] += 1000
    assert torch.equal(saved.groups["tables"]["halved"], halved)
    assert torch.equal(saved.groups["tables"]["copied"], copied)
    assert float(saved.groups["dense"]["w"]) == 2


@pytest.mark.parametrize(
    ("rank", "word", "named"),
    [
        (1, "rank-00001", "rank 1 could not write its part of a checkpoint"),
        (0, "rank-00000", "rank 0 could not write its part of a checkpoint"),
        (0, MANIFEST_FILE, "rank 0 could not write a checkpoint's manifest"),
    ],
)
def test_a_rank_that_cannot_write_fails_all_and_is_named(tmp_path: Path, rank: int, word: str, named: str) -> None:
    told = [each["told"] for each in run_ranks(2, save_twice, tmp_path, (rank, word))]
    assert "no space left on device" in told[rank]
    assert f"rank {1 - rank}: {named}: " in told[1 - rank]
    assert "no space left on device" in told[1 - rank]
    folder = CheckpointFolder(tmp_path)
    assert folder.steps() == [1]
    assert folder.load("last").state == {"step": 1}
    folder.load("last").verify()
