"""What followers are tested with: a folder that is read alone, and what is to be held."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from checkpoint_kit import loaded
from torch import Tensor

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.follow.follower import Follower, Update
from ziggurat.checkpoint.format.manifest import Manifest
from ziggurat.checkpoint.store.store import LocalStore

POLICIES = ("full", "one_shot", "consecutive", "intermittent")


class ReadOnly(LocalStore):
    """A folder that a server sees: every write is a fault; reads are noted, and told beforehand."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read_files: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda folder, name: None

    def read(self, folder: str, name: str) -> bytes:
        self.before(folder, name)
        self.read_files.append((folder, name))
        return super().read(folder, name)

    def write(self, folder: str, name: str, data: bytes) -> None:
        raise AssertionError((folder, name))

    def delete(self, folder: str, name: str | None = None) -> None:
        raise AssertionError((folder, name))

    def steps_read(self) -> set[int]:
        """Of which checkpoints tensors were read, since the last time."""
        found = {int(folder.removeprefix("step-")) for folder, name in self.read_files if name.endswith("tensors")}
        self.read_files.clear()
        return found


def served(folder: CheckpointFolder) -> ReadOnly:
    return ReadOnly(Path(folder.where))


def dense(step: int) -> dict[str, Tensor]:
    return {
        "dense/w": torch.full((2, 3), float(step)),
        "dense/nan": torch.tensor(torch.nan),
        "dense_optimizer/0/exp_avg": torch.full((2, 3), -float(step)),
        "random/torch": torch.arange(8, dtype=torch.uint8),
    }


def held(follower: Follower) -> dict[str, Tensor]:
    """As :func:`loaded` has it."""
    return {f"tables/{name}": table for name, table in follower.tables.items()} | follower.dense


def assert_holds(follower: Follower, folder: CheckpointFolder, step: int) -> None:
    """All weights of a step and nothing else, bit for bit."""
    assert follower.step == step
    whole = loaded(folder, step)
    expected = {name: each for name, each in whole.items() if name.startswith(("tables/", "dense/"))}
    assert bits_of(held(follower)) == bits_of(expected)


def bits_of(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    return {name: (each.dtype, tuple(each.shape), each.numpy().tobytes()) for name, each in tensors.items()}


def manifest_of(folder: CheckpointFolder, step: int) -> Manifest:
    manifest = folder.manifest(step)
    assert manifest is not None
    return manifest


def assert_told(update: Update, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    """Every row that is another one is in the update, and its ids ascend."""
    for name, table in after.items():
        ids = update.rows.get(name, torch.empty(0, dtype=torch.int64))
        assert bool((ids[1:] > ids[:-1]).all())
        untold = torch.ones(len(table), dtype=torch.bool)
        untold[ids] = False
        if name in before:
            assert torch.equal(before[name][untold], table[untold])
        else:
            assert len(ids) == len(table)
