"""Helpers that fill folders with checkpoints of both formats, and damage them."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.checkpoint.checkpoint_kit import Table, saver, write_legacy_checkpoint
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.writer import Best

DENSE = {
    "dense/w": torch.arange(6.0).view(2, 3),
    "dense/count": torch.tensor(3),
    "dense_optimizer/0/mean": torch.ones(2, 3),
    "table_optimizer/item/steps": torch.tensor(4.0),
    "random/torch": torch.arange(8, dtype=torch.uint8),
}


class RecordedProgress:
    """A Progress that records the total and the last position of each stage."""

    def __init__(self) -> None:
        self.totals: dict[str, float | None] = {}
        self.done: dict[str, float] = {}
        self._stage = ""

    def start(self, stage: str, total: float | None, unit: str) -> None:
        self._stage, self.totals[stage] = stage, total

    def advance(self, done: float, **figures: float | str) -> None:
        self.done[self._stage] = done

    def finish(self, message: str = "") -> None: ...

    def note(self, message: str) -> None: ...


def fill(folder: CheckpointFolder, steps: int = 4, policy: str = "consecutive", bits: int = 32) -> tuple[Table, Table]:
    """Saves checkpoints of the steps 1, 2, …, the second as the best."""
    user, item = Table("user", 90, 3, seed=1), Table("item", 300, 7)
    with saver(folder, user, item, policy=policy, bits=bits) as saving:
        for step in range(1, steps + 1):
            best = Best("auc", 0.5) if step == 2 else None
            saving.save(step, DENSE, {"progression": {"step": step}}, best=best)
            item.change(20)
            user.change(2)
    return user, item


def path_of(folder: CheckpointFolder, step: int, name: str = "*") -> Path:
    """Returns the last file of a checkpoint whose name matches the pattern."""
    return sorted((Path(folder.where) / f"step-{step:08d}").glob(name))[-1]


def flip(path: Path) -> None:
    """Flips one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def add_legacy_checkpoint(folder: CheckpointFolder, step: int) -> dict[str, torch.Tensor]:
    groups = {
        "dense": {"w": torch.arange(6.0).view(2, 3)},
        "tables": {"item": torch.arange(2100.0).view(300, 7)},
        "table_optimizer": {"item/sum": torch.arange(300.0), "item/mean": torch.ones(300, 7)},
    }
    write_legacy_checkpoint(Path(folder.where) / f"step-{step:08d}", groups, {"progression": {"step": step}})
    return {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
