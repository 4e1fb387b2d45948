"""Helpers for tests of followers: a read-only store, and assertions about the weights held."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from checkpoint_kit import load_tensors
from torch import Tensor

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.follow.follower import Follower, Update
from ziggurat.checkpoint.format.manifest import Manifest
from ziggurat.checkpoint.store.store import LocalStore
from ziggurat.core.untrusted import MAX_TEXT_BYTES

POLICIES = ("full", "one_shot", "consecutive", "intermittent")


class ReadOnlyStore(LocalStore):
    """A folder in which every write fails. It records reads and calls ``before`` ahead of each."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read_files: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda folder, name: None

    def read(self, folder: str, name: str, limit: int = MAX_TEXT_BYTES) -> bytes:
        self.before(folder, name)
        self.read_files.append((folder, name))
        return super().read(folder, name, limit)

    def write(self, folder: str, name: str, data: bytes) -> None:
        raise AssertionError((folder, name))

    def delete(self, folder: str, name: str | None = None) -> None:
        raise AssertionError((folder, name))

    def steps_read(self) -> set[int]:
        """Returns the steps whose tensors were read since the last call."""
        found = {int(folder.removeprefix("step-")) for folder, name in self.read_files if name.endswith("tensors")}
        self.read_files.clear()
        return found


def read_only(folder: CheckpointFolder) -> ReadOnlyStore:
    return ReadOnlyStore(Path(folder.where))


def dense(step: int) -> dict[str, Tensor]:
    return {
        "dense/w": torch.full((2, 3), float(step)),
        "dense/nan": torch.tensor(torch.nan),
        "dense_optimizer/0/exp_avg": torch.full((2, 3), -float(step)),
        "random/torch": torch.arange(8, dtype=torch.uint8),
    }


def held_tensors(follower: Follower) -> dict[str, Tensor]:
    """Returns ``GROUP/NAME`` -> tensor of a follower, as :func:`load_tensors` does for a checkpoint."""
    return {f"tables/{name}": table for name, table in follower.tables.items()} | follower.dense


def assert_holds(follower: Follower, folder: CheckpointFolder, step: int) -> None:
    """Asserts that the follower holds exactly the weights of a step, bit for bit."""
    assert follower.step == step
    whole = load_tensors(folder, step)
    expected = {name: each for name, each in whole.items() if name.startswith(("tables/", "dense/"))}
    assert bits_of(held_tensors(follower)) == bits_of(expected)


def bits_of(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    return {name: (each.dtype, tuple(each.shape), each.numpy().tobytes()) for name, each in tensors.items()}


def manifest_of(folder: CheckpointFolder, step: int) -> Manifest:
    manifest = folder.manifest(step)
    assert manifest is not None
    return manifest


def assert_rows_reported(update: Update, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    """Asserts that the update lists every row that changed, with ascending ids."""
    for name, table in after.items():
        ids = update.rows.get(name, torch.empty(0, dtype=torch.int64))
        assert bool((ids[1:] > ids[:-1]).all())
        unreported = torch.ones(len(table), dtype=torch.bool)
        unreported[ids] = False
        if name in before:
            assert torch.equal(before[name][unreported], table[unreported])
        else:
            assert len(ids) == len(table)
