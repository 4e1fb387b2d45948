"""Tables of a proxy that have the rows of their encoder, and whose codes are found anew while it trains.

The method is that of Clustered Compositional Embeddings (Tsang and Ahle, arXiv 2210.05974, section 3): a value's vector
is the sum of two rows, both drawn by hash at first. After a pass all values are clustered by their vectors; the first
row is then that of the cluster, and begins as its mean, the second one is drawn by another hash, and begins at 0. So no
table with a row for each value is ever trained. Ours deviates in three points: clusters are found by all values,
weighted by their frequency, in coordinates of the logit; the most frequent values have rows of their own; and what is
trained so is the proxy, whose last codes the model's table then has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ziggurat.core.hashing import UInt64Array, hash_integers, to_buckets
from ziggurat.data.encoded.split import TRAIN
from ziggurat.features.encoders.compressed.clusters import Weights, centroids, cluster
from ziggurat.features.encoders.compressed.mapped import Parts
from ziggurat.features.preparation.proxy.factorisation import (
    NO_ROW,
    Factorisation,
    Floats,
    Ints,
    logit_coordinates,
)
from ziggurat.features.preparation.proxy.rows import ProxyRows


@dataclass(frozen=True, slots=True)
class ComposedTable:
    """A table whose values share rows.

    Attributes:
        start, stop: the inputs of its values.
        first: its first row.
        parts: how its rows are divided; those of missing and unseen values are not among the proxy's.
        keys_N: a key of each value.
        counts_N: how often each is looked up in training rows.
        order_N: the values, the most frequent first.
    """

    start: int
    stop: int
    first: int
    parts: Parts
    keys_N: UInt64Array
    counts_N: Weights
    order_N: Ints

    @property
    def coded(self) -> slice:
        """The rows of clusters."""
        first = self.first + self.parts.private
        return slice(first, first + self.parts.coded[0])

    @property
    def hashed(self) -> slice:
        """The rows that are drawn by hash."""
        return slice(self.coded.stop, self.coded.stop + self.parts.helper)

    @property
    def shared(self) -> Ints:
        """The values without rows of their own, the most frequent first."""
        return self.order_N[self.parts.private :]

    def first_rows(self) -> Ints:
        """Returns the rows of the values before the first clustering, (N, 2)."""
        rows_NC = np.full((len(self.keys_N), 2), NO_ROW, np.int64)
        private = self.order_N[: self.parts.private]
        rows_NC[private, 0] = self.first + np.arange(len(private))
        shared = self.shared
        rows_NC[shared] = np.stack([self._drawn(self.coded, shared, 0), self._drawn(self.hashed, shared, 1)], axis=1)
        return rows_NC

    def cluster(self, model: Factorisation, coordinates_NE: Floats, number: int, seed: int) -> None:
        """Finds the codes of the model's values anew.

        Args:
            model: the proxy, which is changed.
            coordinates_NE: the vectors of the values in the coordinates of the logit.
            number: how many clusterings there were, with this one.
            seed: seed of the clusters.
        """
        assert model.rows_VC is not None
        shared = self.shared
        if not len(shared):
            return
        vectors_NE = model.vectors(self.start + shared)
        weights_N = self.counts_N[shared]
        count = self.parts.coded[0]
        codes_N = cluster(coordinates_NE[shared], weights_N, count, seed + number)
        model.start_anew(self.coded, centroids(vectors_NE, weights_N, codes_N, count))
        model.start_anew(self.hashed, np.zeros_like(model.weights_RE[self.hashed]))
        model.rows_VC[self.start + shared, 0] = self.coded.start + codes_N
        model.rows_VC[self.start + shared, 1] = self._drawn(self.hashed, shared, number + 1)

    def _drawn(self, rows: slice, values: Ints, seed: int) -> Ints:
        hashes = hash_integers(self.keys_N[values].view(np.int64), seed)
        return rows.start + to_buckets(hashes, rows.stop - rows.start)


def composed_model(
    rows: ProxyRows, parts: Mapping[str, Parts], dim: int, seed: int
) -> tuple[Factorisation, list[ComposedTable]]:
    """Returns the model before its first step, and its tables whose values share rows.

    Args:
        rows: the data.
        parts: how the rows of each of these tables are divided.
        dim: numbers of a vector.
        seed: seed of the first vectors.
    """
    counts_V = rows.lookups(TRAIN)
    rows_VC = np.full((len(rows.keys_V), 2), NO_ROW, np.int64)
    keys: list[UInt64Array] = []
    tables: list[ComposedTable] = []
    end = done = 0
    for number, (name, inputs) in enumerate(rows.tables.items()):
        if name not in parts:
            continue
        own = slice(inputs.start, inputs.stop)
        keys.append(rows.keys_V[done : own.start])
        rows_VC[done : own.start, 0] = np.arange(end, end + own.start - done)
        end += own.start - done
        order = np.lexsort((rows.keys_V[own], -counts_V[own]))
        table = ComposedTable(own.start, own.stop, end, parts[name], rows.keys_V[own], counts_V[own], order)
        size = table.hashed.stop - end
        keys.append(hash_integers(np.arange(size), len(rows.tables) + 1 + number))
        rows_VC[own] = table.first_rows()
        end, done = end + size, own.stop
        tables.append(table)
    keys.append(rows.keys_V[done:])
    rows_VC[done:, 0] = np.arange(end, end + len(keys[-1]))
    return Factorisation.initial(np.concatenate(keys), dim, seed, rows_VC, logistic=rows.logistic), tables


def cluster_all(tables: Sequence[ComposedTable], model: Factorisation, rows: ProxyRows, number: int, seed: int) -> None:
    """Finds the codes of all these tables anew."""
    coordinates = logit_coordinates(model, rows.pools(TRAIN), [range(table.start, table.stop) for table in tables])
    for table, coordinates_NE in zip(tables, coordinates, strict=True):
        table.cluster(model, coordinates_NE, number, seed)
