"""Tables whose rows change, and helpers to save and load checkpoints of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ziggurat.checkpoint.config import CheckpointsConfig
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format.manifest import TableShape
from ziggurat.checkpoint.saver import Saver
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.dirty_rows import DirtyRows, TrackedShard
from ziggurat.parallel.tensor_slices import TensorSlice
from ziggurat.training.process_group import process_group


class Table:
    """A table with one optimizer state per row (``sum``) and one per value (``mean``)."""

    def __init__(self, name: str = "item", rows: int = 300, dim: int = 7, seed: int = 0) -> None:
        self.name, self._draw = name, torch.Generator().manual_seed(seed)
        self.weight_RD = torch.randn(rows, dim, generator=self._draw)
        self.sum_R = torch.rand(rows, generator=self._draw)
        self.mean_RD = torch.rand(rows, dim, generator=self._draw)
        self.dirty = DirtyRows({"": self.weight_RD, "sum": self.sum_R, "mean": self.mean_RD})

    def change(self, rows: int) -> None:
        """Changes up to ``rows`` random rows."""
        ids_L = torch.randint(len(self.weight_RD), (rows,), generator=self._draw)
        self.dirty.touch(ids_L)
        for tensor in (self.weight_RD, self.sum_R, self.mean_RD):
            tensor[ids_L] += torch.rand(tensor[ids_L].shape, generator=self._draw)

    @property
    def shape(self) -> TableShape:
        rows, dim = self.weight_RD.shape
        return TableShape(rows=rows, dim=dim, states={"sum": 0, "mean": dim})

    @property
    def shard(self) -> TrackedShard:
        rows, dim = self.weight_RD.shape
        spec = TableSpec(self.name, rows, dim, (self.name,), "sum", {"name": "sgd", "lr": 0.1, "l2": 0.0}, 0.01)
        states = {
            "sum": TensorSlice.of_tensor(f"{self.name}/sum", self.sum_R),
            "mean": TensorSlice.of_tensor(f"{self.name}/mean", self.mean_RD),
        }
        return TrackedShard(self.name, spec, TensorSlice.of_tensor(self.name, self.weight_RD), states, self.dirty)

    def tensors(self) -> dict[str, Tensor]:
        """Returns ``GROUP/NAME`` -> a copy of the tensor."""
        return {
            f"tables/{self.name}": self.weight_RD.clone(),
            f"table_optimizer/{self.name}/sum": self.sum_R.clone(),
            f"table_optimizer/{self.name}/mean": self.mean_RD.clone(),
        }


@contextlib.contextmanager
def saver(
    folder: CheckpointFolder, *tables: Table, check: Callable[[], None] = lambda: None, **config: Any
) -> Generator[Saver]:
    """Yields a saver of the tables, on one rank."""
    shapes = {table.name: table.shape for table in tables}
    checkpoints = CheckpointsConfig(**config)
    shards = [table.shard for table in tables]
    with (
        process_group(torch.device("cpu")),
        Saver(folder, checkpoints, shards, shapes, versions={"ziggurat": "1"}, check=check) as made,
    ):
        yield made


def load_tensors(folder: CheckpointFolder, step: int | str) -> dict[str, Tensor]:
    """Returns ``GROUP/NAME`` -> tensor of a checkpoint."""
    groups = folder.load(step).groups
    return {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


def same_bits(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def write_legacy_checkpoint(folder: Path, groups: Mapping[str, Mapping[str, Tensor]], state: dict[str, Any]) -> None:
    """Writes a checkpoint of format 1."""
    folder.mkdir(parents=True)
    digests: dict[str, str] = {}
    for group, tensors in groups.items():
        path = folder / f"{group}.safetensors"
        save_file(dict(tensors), path)
        digests[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    values = {"format_version": 1, "files": digests, "state": state}
    (folder / "state.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
