"""The embedding lookup: the fields that a model sees, whatever the plan, the table dims and the optimizers.

Shape legend: B rows of the batch, F fields, D embedding width, W floats of a table's row, L ids, N bags, S positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from ziggurat.core.batch import Batch
from ziggurat.core.errors import FeatureError
from ziggurat.core.plan import Plan
from ziggurat.embeddings.fields import Fields
from ziggurat.embeddings.initial import fill_initial
from ziggurat.embeddings.layout import Layout
from ziggurat.embeddings.positions import split_positions
from ziggurat.embeddings.replicated import ReplicatedTable, is_replicated
from ziggurat.embeddings.sharding import ShardedTables


class EmbeddingLookup(nn.Module):
    """emb_BFD of a batch; rows are updated by their own optimizers while the backward pass runs.

    Tables live in TorchRec's DistributedModelParallel, placed by ``plan``. Those that the plan replicates, and those
    whose Adam FBGEMM has no kernel for (on the CPU, or on all rows), are :class:`ReplicatedTable`.

    Args:
        layout: the tables, and what becomes of their rows.
        plan: where the shards live.
        device: of the tables.
        seed: of the tables' initial weights; those of the fields come from torch's global generator.
    """

    def __init__(self, layout: Layout, plan: Plan, device: torch.device, seed: int) -> None:
        super().__init__()
        self.layout, tables = layout, layout.tables
        replicated = [spec for spec in tables if is_replicated(spec, device, plan.placements[spec.name].sharding)]
        fused = [spec for spec in tables if spec not in replicated]
        self.sharded = ShardedTables(fused, plan, device) if fused else None
        self.replicated = nn.ModuleList([ReplicatedTable(spec) for spec in replicated]).to(device)
        self.fields = Fields(layout).to(device)
        self._table_of = layout.table_of
        self._feature_of = {key: f for f, spec in self._table_of.items() for key in spec.keys_of(f)}
        std = {spec.name: spec.init_std for spec in tables}
        dims = {spec.name: spec.dim for spec in tables}
        for name, weight_RD, row, column in self._weights():
            fill_initial(weight_RD, name, std[name], seed, row, column, dims[name])

    @property
    def features(self) -> int:
        """F, the number of fields."""
        return len(self.layout.fields)

    def forward(self, batch: Batch) -> Tensor:
        """The fields of ``layout``, shape (B, F, D).

        Raises:
            FeatureError: an id outside its table, naming feature, id, the table's rows and the rank.
        """
        ids, masks = self._ids(batch)
        if ids is None:
            return batch.dense_BF.new_zeros(batch.size, 0, self.layout.dim)
        try:
            return self._look_up(ids, masks, batch.size)
        except (RuntimeError, IndexError):
            self._explain_out_of_range(ids)
            raise

    def exchange(self) -> None:
        """Behind each backward pass: where there are several ranks, what they have to tell each other of the tables
        that all of them hold."""
        if dist.get_world_size() > 1:
            for table in self._replicated():
                table.exchange()

    def scale_learning_rates(self, multiplier: float) -> None:
        """Set every table's learning rate to ``multiplier`` times its configured one."""
        if self.sharded is not None:
            self.sharded.scale_learning_rates(multiplier)
        for table in self._replicated():
            table.lr = float(table.spec.optimizer["lr"]) * multiplier

    def weights(self) -> dict[str, Tensor]:
        """Table name -> this rank's weights, views of the live table."""
        return {name: weight for name, weight, _, _ in self._weights()}

    def optimizer_state(self) -> dict[str, Tensor]:
        """``table/state`` -> this rank's optimizer state, views of the live tensors."""
        states: dict[str, Tensor] = {}
        if self.sharded is not None:
            states.update({f"{table}/{name}": tensor for table, name, tensor in self.sharded.optimizer_shards()})
        for table in self._replicated():
            states.update({f"{table.spec.name}/{name}": state for name, state in table.state().items()})
        return states

    def _ids(self, batch: Batch) -> tuple[KeyedJaggedTensor | None, dict[str, Tensor]]:
        """All ids under the keys that tables look up, and mask_BS of each sequence that has positions."""
        sequences, masks = batch.sequences, dict[str, Tensor]()
        if sequences is not None and self.layout.positions:
            sequences, masks = split_positions(sequences, self._table_of)
        parts = [part for part in (batch.bags, sequences) if part is not None]
        return KeyedJaggedTensor.concat(parts) if len(parts) > 1 else (parts[0] if parts else None), masks

    def _look_up(self, ids: KeyedJaggedTensor, masks: Mapping[str, Tensor], size: int) -> Tensor:
        rows: dict[str, Tensor] = {}
        if self.sharded is not None:
            keyed = self.sharded(ids)
            if not self.replicated and self.layout.direct:
                return self._direct(keyed, size)
            rows.update(self._sharded_rows(keyed))
        for table in self._replicated():
            rows.update(_replicated_rows(table, ids, size))
        return self.fields(rows, masks)

    def _direct(self, keyed: KeyedTensor, size: int) -> Tensor:
        """The tables' output as it is, but for the order of the features."""
        emb_BFD = keyed.values().view(size, -1, self.layout.dim)
        order, keys = self.layout.schema.sparse, tuple(keyed.keys())
        if keys == order:
            return emb_BFD
        starts: dict[str, int] = {}
        vectors = 0
        for key in keys:
            starts[key] = vectors
            vectors += self._table_of[key].vectors
        return emb_BFD[:, [starts[f] + number for f in order for number in range(self._table_of[f].vectors)]]

    def _sharded_rows(self, keyed: KeyedTensor) -> dict[str, Tensor]:
        """Feature -> (B, W), or (B, S, W): a feature's positions lie side by side, as its table lists them."""
        runs = [(feature, len(list(run))) for feature, run in groupby(keyed.keys(), self._feature_of.__getitem__)]
        blocks = keyed.values().split([count * self._table_of[feature].dim for feature, count in runs], dim=1)
        return {
            feature: block.unflatten(1, (count, -1)) if feature in self.layout.positions else block
            for (feature, count), block in zip(runs, blocks, strict=True)
        }

    def _replicated(self) -> Iterator[ReplicatedTable]:
        for table in self.replicated:
            assert isinstance(table, ReplicatedTable)
            yield table

    def _weights(self) -> Iterator[tuple[str, Tensor, int, int]]:
        if self.sharded is not None:
            yield from self.sharded.weight_shards()
        for table in self._replicated():
            yield table.spec.name, table.weight_RD, 0, 0

    def _explain_out_of_range(self, ids: KeyedJaggedTensor) -> None:
        for key, jagged in ids.to_dict().items():
            feature = self._feature_of[key]
            rows = self._table_of[feature].rows
            values_L = jagged.values()
            bad = values_L[(values_L < 0) | (values_L >= rows)]
            if len(bad):
                raise FeatureError(
                    f"feature {feature!r}: id {int(bad[0])} is outside [0, {rows}), the rows of table "
                    f"{self._table_of[feature].name!r}, on rank {dist.get_rank()}",
                    "encode the rows with the transform that was fitted with this model (`ziggurat prepare`)",
                ) from None


def _replicated_rows(table: ReplicatedTable, ids: KeyedJaggedTensor, size: int) -> dict[str, Tensor]:
    """The table's features looked up together, so that a row they share is updated once; shaped as the others are."""
    jagged, spec = ids.to_dict(), table.spec
    parts = [jagged[key] for key in spec.keys]
    row_NW = table(torch.cat([part.values() for part in parts]), torch.cat([part.lengths() for part in parts]))
    blocks = row_NW.split([size * len(spec.keys_of(feature)) for feature in spec.features])
    return {
        feature: block.view(-1, size, spec.dim).transpose(0, 1) if feature in spec.positions else block
        for feature, block in zip(spec.features, blocks, strict=True)
    }
