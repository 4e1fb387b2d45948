"""The embedding lookup: one vector per sparse feature, whatever the plan, the table dims and the optimizers.

Shape legend: B rows of the batch, F sparse features, D embedding width, L ids, N bags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ziggurat.core.batch import Batch
from ziggurat.core.errors import FeatureError
from ziggurat.core.plan import Plan
from ziggurat.core.schema import Schema
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.initial import fill_initial
from ziggurat.embeddings.row_adam import RowAdamTable, is_own_adam
from ziggurat.embeddings.sharding import ShardedTables, inner_name


class EmbeddingLookup(nn.Module):
    """emb_BFD of a batch; rows are updated by their own optimizers while the backward pass runs.

    Tables live in TorchRec's DistributedModelParallel, placed by ``plan``. Adam on the CPU or on all rows is the
    exception: FBGEMM has no kernel for it, so those tables are :class:`RowAdamTable`, for a world of one.

    Args:
        schema: which features look up which table.
        tables: the tables; the features of tables whose dim is not ``dim`` are projected to it.
        plan: where the shards live.
        device: of the tables.
        dim: D, the width of the vectors handed to the model.
        seed: of the initial weights.
    """

    def __init__(
        self, schema: Schema, tables: Sequence[TableSpec], plan: Plan, device: torch.device, dim: int, seed: int
    ) -> None:
        super().__init__()
        self.schema, self.tables, self.dim = schema, tuple(tables), dim
        row_adam = [spec for spec in tables if is_own_adam(spec, device)]
        fused = [spec for spec in tables if spec not in row_adam]
        self.sharded = ShardedTables(fused, plan, device) if fused else None
        self.row_adam = nn.ModuleList([RowAdamTable(spec) for spec in row_adam]).to(device)
        self.projections = nn.ModuleDict(
            {inner_name(spec.name): nn.Linear(spec.dim, dim, bias=False) for spec in tables if spec.dim != dim}
        ).to(device)
        self._table_of = {feature: spec for spec in tables for feature in spec.features}
        std = {spec.name: spec.init_std for spec in tables}
        for name, weight_RD, first_row in self._weights():
            fill_initial(weight_RD, name, std[name], seed, first_row)

    @property
    def features(self) -> int:
        """F, the number of vectors per row."""
        return len(self.schema.sparse)

    def forward(self, batch: Batch) -> Tensor:
        """One vector per sparse feature, in ``schema.sparse`` order, shape (B, F, D).

        Raises:
            FeatureError: an id outside its table, naming feature, id, the table's rows and the rank.
        """
        ids = _merge(batch)
        if ids is None:
            return batch.dense_BF.new_zeros(batch.size, 0, self.dim)
        try:
            return self._look_up(ids, batch.size)
        except (RuntimeError, IndexError):
            self._explain_out_of_range(ids)
            raise

    def scale_learning_rates(self, multiplier: float) -> None:
        """Set every table's learning rate to ``multiplier`` times its configured one."""
        if self.sharded is not None:
            self.sharded.scale_learning_rates(multiplier)
        for table in self._row_adam():
            table.lr = float(table.spec.optimizer["lr"]) * multiplier

    def weights(self) -> dict[str, Tensor]:
        """Table name -> this rank's weights, views of the live table."""
        return {name: weight for name, weight, _ in self._weights()}

    def optimizer_state(self) -> dict[str, Tensor]:
        """``table/state`` -> this rank's optimizer state, views of the live tensors."""
        states: dict[str, Tensor] = {}
        if self.sharded is not None:
            states.update({f"{table}/{name}": tensor for table, name, tensor in self.sharded.optimizer_shards()})
        for table in self._row_adam():
            name = table.spec.name
            states.update({f"{name}/exp_avg": table.exp_avg_RD, f"{name}/exp_avg_sq": table.exp_avg_sq_RD})
            states[f"{name}/steps"] = table.steps
        return states

    def _look_up(self, ids: KeyedJaggedTensor, size: int) -> Tensor:
        order = self.schema.sparse
        vectors: dict[str, Tensor] = {}
        if self.sharded is not None:
            keyed = self.sharded(ids)
            if not self.row_adam and not self.projections:
                emb_BFD = keyed.values().view(size, len(order), self.dim)
                keys = tuple(cast("list[str]", keyed.keys()))
                return emb_BFD if keys == order else emb_BFD[:, [keys.index(feature) for feature in order]]
            vectors.update(keyed.to_dict())
        for table in self._row_adam():
            vectors.update(_row_adam_vectors(table, ids, size))
        return torch.stack([self._project(feature, vectors[feature]) for feature in order], dim=1)

    def _project(self, feature: str, emb_BD: Tensor) -> Tensor:
        key = inner_name(self._table_of[feature].name)
        return self.projections[key](emb_BD) if key in self.projections else emb_BD

    def _row_adam(self) -> Iterator[RowAdamTable]:
        for table in self.row_adam:
            assert isinstance(table, RowAdamTable)
            yield table

    def _weights(self) -> Iterator[tuple[str, Tensor, int]]:
        if self.sharded is not None:
            yield from self.sharded.weight_shards()
        for table in self._row_adam():
            yield table.spec.name, table.weight_RD, 0

    def _explain_out_of_range(self, ids: KeyedJaggedTensor) -> None:
        for feature, jagged in ids.to_dict().items():
            rows = self._table_of[feature].rows
            values_L = jagged.values()
            bad = values_L[(values_L < 0) | (values_L >= rows)]
            if len(bad):
                raise FeatureError(
                    f"feature {feature!r}: id {int(bad[0])} is outside [0, {rows}), the rows of table "
                    f"{self._table_of[feature].name!r}, on rank {dist.get_rank()}",
                    "encode the rows with the transform that was fitted with this model (`ziggurat prepare`)",
                ) from None


def _merge(batch: Batch) -> KeyedJaggedTensor | None:
    parts = [part for part in (batch.bags, batch.sequences) if part is not None]
    return KeyedJaggedTensor.concat(parts) if len(parts) > 1 else (parts[0] if parts else None)


def _row_adam_vectors(table: RowAdamTable, ids: KeyedJaggedTensor, size: int) -> dict[str, Tensor]:
    """The table's features looked up together, so that a row they share is updated once."""
    jagged = ids.to_dict()
    parts = [jagged[feature] for feature in table.spec.features]
    emb_ND = table(torch.cat([part.values() for part in parts]), torch.cat([part.lengths() for part in parts]))
    return dict(zip(table.spec.features, emb_ND.split(size), strict=True))
