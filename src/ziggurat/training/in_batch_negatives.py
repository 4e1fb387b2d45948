"""In-batch negatives: each positive of a training batch meets the items of other rows of the same batch.

Legend: B rows that are read, K negatives for each, N = B (1 + K) rows of the batch that the model gets.

Rows B, 2B, … are copies of the rows that were read, in which the item's features come from another row: the rows are
rotated by a different amount for each of the K copies, drawn from the seed and the position in the epoch, so that a
resumed training draws the same. A copy has weight 0, so that nothing is learned from it, if its row is no positive, or
if its item is a known positive of its user in any split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ziggurat.core.batch import Batch
from ziggurat.core.errors import ConfigError
from ziggurat.core.schema import Schema, label_column
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.data.encoded.manifest import SPLITS
from ziggurat.data.ingest.loader import IngestLoader
from ziggurat.features.config import CategoricalFeature, FeatureConfig
from ziggurat.features.inputs.of_features import inputs_of
from ziggurat.features.negatives_config import InBatchNegatives, NegativesConfig
from ziggurat.training.experiment import Experiment


def rows_read(batch_size: int, negatives: NegativesConfig | None, ranks: int) -> int:
    """Returns how many rows are read for a batch of ``batch_size`` rows, over all ranks.

    Raises:
        ConfigError: some rank would read fewer than two rows, of which no other has an item to give.
    """
    if not isinstance(negatives, InBatchNegatives):
        return batch_size
    rows = batch_size // (1 + negatives.per_positive)
    if rows < 2 * ranks:
        least = 2 * ranks * (1 + negatives.per_positive)
        raise ConfigError(
            f"training.batch_size={batch_size}: with {negatives.per_positive} in-batch negatives a positive, it holds "
            f"{rows} positives for {ranks} rank{'s' * (ranks > 1)}, and each rank needs two",
            f"--set training.batch_size={least} or larger, or lower data.negatives.per_positive",
        )
    return rows


def with_negatives(
    loader: Loader | IngestLoader, experiment: Experiment, dataset: Dataset
) -> Loader | IngestLoader | InBatchLoader:
    """Returns a loader whose batches have in-batch negatives, or ``loader`` itself if the config asks for none.

    Raises:
        ConfigError: user or item is no categorical feature, or readers hold the training rows.
        DataError: the dataset is damaged.
    """
    negatives = experiment.data.negatives
    if not isinstance(negatives, InBatchNegatives):
        return loader
    if not isinstance(loader, Loader):
        raise ConfigError(
            "data.negatives: in_batch negatives need all positives on this machine, and training.readers hold them",
            "prepare the dataset here and leave out training.readers, or sample by uniform or popularity",
        )
    sides = _Sides.of(experiment.features, negatives, dataset.schema, experiment.data.negative_label)
    return InBatchLoader(loader, sides, negatives, _known_pairs(dataset, sides))


@dataclass(frozen=True, slots=True)
class _Sides:
    """Which encoded features belong to the item.

    Attributes:
        user, item: the features whose ids tell known positives.
        item_rows: number of rows of the item's table; a pair of ids is ``user * item_rows + item``.
        label: the name of the label of the positives, and its place among the labels.
        dense, bags, sequences: whether each feature of the batch describes the item.
    """

    user: str
    item: str
    item_rows: int
    label: tuple[str, int]
    dense: Tensor
    bags: tuple[bool, ...]
    sequences: tuple[bool, ...]

    @classmethod
    def of(cls, features: Sequence[FeatureConfig], negatives: InBatchNegatives, schema: Schema, label: str) -> _Sides:
        described = {negatives.item, *negatives.item_columns}
        names = {each.name for each in inputs_of(features) if described.issuperset(each.log_columns)}
        item = _id_feature(features, "item", negatives.item, schema.categorical)
        return cls(
            _id_feature(features, "user", negatives.user, schema.categorical),
            item,
            schema.rows[schema.tables[item]],
            (label, schema.labels.index(label)),
            torch.tensor([name in names for name in schema.dense], dtype=torch.bool),
            tuple(name in names for name in schema.pooled),
            tuple(name in names for name in schema.sequences),
        )


def _id_feature(features: Sequence[FeatureConfig], key: str, column: str, single: Sequence[str]) -> str:
    for feature in features:
        if isinstance(feature, CategoricalFeature) and feature.source_column == column and feature.name in single:
            return feature.name
    raise ConfigError(
        f"data.negatives: in_batch negatives need the {key} column {column!r} as a categorical feature "
        "with one row a value",
        f"add {{name: {column}, kind: categorical}} to features, or sample by uniform or popularity",
    )


def _known_pairs(dataset: Dataset, sides: _Sides) -> npt.NDArray[np.int64]:
    """Returns the pairs of user and item ids of all positives, of every split, sorted."""
    found: list[npt.NDArray[np.int64]] = []
    for split in SPLITS:
        blocks = dataset.split(split)
        for number in range(len(blocks.sizes)):
            batch = blocks.read(number)
            positive = _column(batch, label_column(sides.label[0])) == 1
            pairs = _column(batch, sides.user).astype(np.int64) * sides.item_rows + _column(batch, sides.item)
            found.append(np.unique(pairs[positive]))
    return np.unique(np.concatenate(found))


def _column(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    return batch.column(batch.schema.get_field_index(name)).to_numpy(zero_copy_only=False)


class InBatchLoader:
    """A loader whose batches have in-batch negatives; its rows and cursors are those of the rows that are read.

    Args:
        loader: the loader of the positives.
        sides: which features belong to the item.
        negatives: the section of the config.
        known: the pairs of all known positives, sorted.
    """

    def __init__(
        self, loader: Loader, sides: _Sides, negatives: InBatchNegatives, known: npt.NDArray[np.int64]
    ) -> None:
        self._loader, self._sides, self._count, self._seed = loader, sides, negatives.per_positive, negatives.seed
        self._known = torch.from_numpy(known)

    @property
    def rows(self) -> int:
        """Number of rows that are read in an epoch, over all ranks."""
        return self._loader.rows

    @property
    def steps_per_epoch(self) -> int:
        return self._loader.steps_per_epoch

    def epoch(self, start: Cursor) -> Iterator[tuple[Batch, Cursor]]:
        """Yields the remaining batches of ``start.epoch``, each with the cursor after it."""
        at = start
        for batch, cursor in self._loader.epoch(start):
            yield self._with_negatives(batch, at), cursor
            at = cursor

    def _with_negatives(self, batch: Batch, at: Cursor) -> Batch:
        rows = batch.size
        draw = np.random.default_rng([self._seed % 2**63, at.epoch, at.rows])
        rotations = 1 + draw.permutation(rows - 1)[: self._count]
        sources_N = torch.from_numpy(
            np.concatenate([np.arange(rows), *((np.arange(rows) + each) % rows for each in rotations)])
        )
        own_N = torch.arange(rows).repeat(1 + len(rotations))
        expanded = replace(
            batch,
            dense_BF=torch.where(self._sides.dense, batch.dense_BF[sources_N], batch.dense_BF[own_N]),
            bags=_taken(batch.bags, self._sides.bags, own_N, sources_N),
            sequences=_taken(batch.sequences, self._sides.sequences, own_N, sources_N),
            labels_BT=torch.cat(
                [batch.labels_BT, batch.labels_BT.new_zeros(len(own_N) - rows, batch.labels_BT.shape[1])]
            ),
            groups_B=None if batch.groups_B is None else batch.groups_B[own_N],
            largest=None if batch.largest is None else batch.largest * (1 + min(self._count, batch.largest - 1)),
        )
        weights_B = torch.ones(rows) if batch.weights_B is None else batch.weights_B
        usable_N = (batch.labels_BT[:, self._sides.label[1]] == 1)[own_N] & ~self._is_known(expanded)
        usable_N[:rows] = True
        return replace(expanded, weights_B=weights_B[own_N] * usable_N)

    def _is_known(self, batch: Batch) -> Tensor:
        assert batch.bags is not None
        users_N, items_N = batch.bags[self._sides.user].values(), batch.bags[self._sides.item].values()
        pairs_N = users_N * self._sides.item_rows + items_N
        place_N = torch.searchsorted(self._known, pairs_N).clamp(max=len(self._known) - 1)
        return self._known[place_N] == pairs_N


def _taken(
    jagged: KeyedJaggedTensor | None, from_sources: Sequence[bool], own_N: Tensor, sources_N: Tensor
) -> KeyedJaggedTensor | None:
    """Returns the rows ``sources_N`` of the keys that are ``from_sources``, and the rows ``own_N`` of the others."""
    if jagged is None:
        return None
    rows, lengths, offsets = jagged.stride(), jagged.lengths(), jagged.offsets()
    segments = torch.cat([key * rows + (sources_N if each else own_N) for key, each in enumerate(from_sources)])
    new_lengths = lengths[segments].long()
    ends = torch.cumsum(new_lengths, 0)
    shifts = torch.repeat_interleave(offsets[:-1][segments] - (ends - new_lengths), new_lengths)
    values = jagged.values()[torch.arange(len(shifts)) + shifts]
    return KeyedJaggedTensor(keys=jagged.keys(), values=values, lengths=new_lengths.to(lengths.dtype))
