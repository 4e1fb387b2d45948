"""The model of ``checkpoint_stall`` and ``tiered_training``: a DLRM over large tables, on ids drawn in advance.

Shape legend: B batch, L ids, T tasks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ziggurat.checkpoint.format.manifest import TableShape
from ziggurat.core.batch import Batch
from ziggurat.core.plan import Plan
from ziggurat.core.schema import Schema
from ziggurat.core.tables import TableSpec
from ziggurat.data.encoded.loader import Cursor
from ziggurat.data.synthetic.sampling import permute_ids, ranks, zipf_ranks
from ziggurat.embeddings.dirty_rows import TrackedShard
from ziggurat.embeddings.layout import Layout
from ziggurat.embeddings.offload import OffloadFolder
from ziggurat.parallel.tensor_slices import TensorSlice
from ziggurat.training.experiment import Experiment
from ziggurat.training.recommender import assemble
from ziggurat.training.recommender_state import dense_state, table_shapes
from ziggurat.training.step import Stepper, StepWork, prefetched_batches

CPU = torch.device("cpu")
EXPONENT = 1.05


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the model.

    Attributes:
        tables, rows, dim: the number of embedding tables, the rows of each, and their dimension.
        batch_size: the rows of a step, each with one id per table.
        drawn: the number of ids drawn in advance per table; a step takes consecutive ids from a random position.
        hidden: the widths of the dense part.
    """

    tables: int
    rows: int
    dim: int
    batch_size: int
    drawn: int
    hidden: tuple[int, ...]


class BigTables:
    """A model that takes training steps; requires a process group of one rank.

    Args:
        size: the size of the model.
        exponent: the exponent of Zipf's law for the ids.
        plan: the plan of the tables; default: all on this rank.
        offload: the folder of rows that are offloaded to disk.

    Attributes:
        size: the size of the model.
        steps: the number of steps taken.
    """

    def __init__(
        self, size: Size, exponent: float = EXPONENT, plan: Plan | None = None, offload: OffloadFolder | None = None
    ) -> None:
        self.size, self.steps = size, 0
        self._names = [f"t{number}" for number in range(size.tables)]
        experiment = _experiment(size, self._names)
        plan = plan or Plan.single_device(self._names)
        self._recommender = assemble(experiment, _layout(size), plan, CPU, offload_folder=offload)
        self._recommender.train()
        self._optimizer = experiment.optimizer.build(self._recommender.dense_parameters())
        self._step = Stepper(self._recommender, self._optimizer, 0.0, None)
        self._ids = [torch.from_numpy(drawn(size, number, exponent)) for number in range(size.tables)]
        self._places = np.random.default_rng(0)

    @staticmethod
    def specs(size: Size) -> tuple[TableSpec, ...]:
        """Returns the tables of a model of this size."""
        return _layout(size).tables

    def modules(self) -> Iterator[nn.Module]:
        """Yields the modules of the model."""
        return self._recommender.modules()

    def batches(self, count: int) -> list[tuple[Batch, Cursor]]:
        """Returns batches for ``count`` steps."""
        return [(self._batch(), Cursor()) for _ in range(count)]

    def losses(self, batches: Sequence[tuple[Batch, Cursor]]) -> Generator[float]:
        """Takes a step on each batch and yields its loss.

        The lookups of later batches are started in advance, as in training. The caller may stop early.
        """
        coming: Sequence[StepWork] = ()
        try:
            for work, coming in prefetched_batches(batches, self._recommender.lookup, CPU, pipelined=False):
                done = self._step(work, next(iter(coming), None))
                self.steps += 1
                yield float(done.loss / done.weight)
        finally:
            for each in coming:
                if each.started is not None:
                    self._recommender.lookup.drop(each.started)

    def transferred(self) -> dict[str, float]:
        """Returns the transfer counters of offloaded rows."""
        return self._recommender.lookup.transferred()

    def close(self) -> None:
        """Deletes the files on disk."""
        self._recommender.lookup.close()

    @property
    def shards(self) -> list[TrackedShard]:
        """The live tables with their dirty rows."""
        return self._recommender.lookup.shards()

    @property
    def shapes(self) -> dict[str, TableShape]:
        """The shapes of the tables."""
        return table_shapes(self._recommender)

    @property
    def table_bytes(self) -> int:
        """The size of the tables' weights in bytes."""
        return 4 * self.size.tables * self.size.rows * self.size.dim

    def dense(self) -> dict[str, Tensor]:
        """Returns all live tensors except rows of tables."""
        found = dense_state(self._recommender, self._optimizer)
        assert found is not None
        return found

    def tensor_slices(self) -> dict[str, list[TensorSlice]]:
        """Returns the live rows of tables and their optimizer states, as a restore fills them."""
        lookup = self._recommender.lookup
        return {
            "tables": lookup.tensor_slices(),
            "table_optimizer": [each for each in lookup.state_slices() if each.shape],
        }

    def tensors(self) -> dict[str, Tensor]:
        """Returns the same tensors and the dense part, in the form in which another library saves them."""
        rows = {
            f"{group}/{tensor_slice.name}": tensor_slice.tensor
            for group, some in self.tensor_slices().items()
            for tensor_slice in some
        }
        return {**rows, **self.dense()}

    def changed(self) -> float:
        """Returns the share of rows that have changed since the last checkpoint."""
        marked = sum(shard.dirty.count_changed("last") for shard in self.shards)
        return marked / (self.size.tables * self.size.rows)

    def step(self) -> float:
        """Takes a step and returns its seconds, excluding the creation of the batch."""
        batch = self._batch()
        work = StepWork(batch, Cursor(), float(batch.size))
        started = time.perf_counter()
        self._step(work)
        self.steps += 1
        return time.perf_counter() - started

    @contextlib.contextmanager
    def unmarked(self) -> Generator[None]:
        """Removes the hooks that mark dirty rows from the kernels within its context."""
        taken = [(module, key) for module in self._kernels() for key in _marking(module)]
        assert taken, "no kernel marks its rows"
        hooks = [(module, key, _hooks(module).pop(key)) for module, key in taken]
        try:
            yield
        finally:
            for module, key, hook in hooks:
                _hooks(module)[key] = hook

    def _kernels(self) -> Iterator[nn.Module]:
        for module in self._recommender.modules():
            if isinstance(module, ShardedEmbeddingBagCollection):
                for lookup in module._lookups:  # pyright: ignore[reportPrivateUsage] - a plain list, no submodules
                    yield from lookup.modules()

    def _batch(self) -> Batch:
        rows = self.size.batch_size
        starts = self._places.integers(0, self.size.drawn - rows + 1, len(self._ids)).tolist()
        ids_L = torch.cat([ids[start : start + rows] for ids, start in zip(self._ids, starts, strict=True)]).long()
        lengths_L = torch.ones(len(ids_L), dtype=torch.int32)
        bags = KeyedJaggedTensor(keys=self._names, values=ids_L, lengths=lengths_L)
        labels_BT = torch.from_numpy(self._places.integers(0, 2, (rows, 1)).astype(np.float32))
        return Batch(torch.zeros(rows, 0), bags, None, labels_BT)


def drawn(size: Size, table: int, exponent: float) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Returns ids of a table by Zipf's law; frequent ids are spread over the table."""
    draw = np.random.default_rng([table, size.rows])
    bits = draw.integers(0, 2**64, size.drawn, dtype=np.uint64)
    rank = ranks(zipf_ranks(size.rows, exponent), bits, size.rows)
    return permute_ids(rank, size.rows).astype(np.int32)


def _hooks(module: nn.Module) -> dict[int, object]:
    return module._forward_hooks  # pyright: ignore[reportPrivateUsage,reportReturnType] - torch has no other way


def _marking(module: nn.Module) -> Iterator[int]:
    """Yields the keys of the hooks that mark a kernel's dirty rows."""
    for key, hook in list(_hooks(module).items()):
        if getattr(hook, "__module__", "") == "ziggurat.embeddings.dirty_rows":
            yield key


def _layout(size: Size) -> Layout:
    names = [f"t{number}" for number in range(size.tables)]
    tables, rows = {name: name for name in names}, dict.fromkeys(names, size.rows)
    schema = Schema(categorical=tuple(names), tables=tables, rows=rows, labels=("y",))
    return _experiment(size, names).layout(schema)


def _experiment(size: Size, names: list[str]) -> Experiment:
    return Experiment.model_validate(
        {
            "name": "stall",
            "data": {
                "source": {"name": "csv", "files": ["none.csv"]},
                "split": {"name": "random"},
                "labels": [{"name": "y"}],
            },
            "features": [{"name": name, "kind": "categorical"} for name in names],
            "embeddings": {"dim": size.dim, "optimizer": {"name": "rowwise_adagrad", "lr": 0.01}},
            "model": {"name": "dlrm", "top": {"hidden": list(size.hidden)}},
            "optimizer": {"name": "adam", "lr": 0.001},
            "training": {"batch_size": size.batch_size, "device": "cpu"},
        }
    )
