"""The checks that ids are rows of their tables.

On the CPU the kernels refuse an id outside its table, and :meth:`IdRange.check` then finds which one it was. On a GPU
an assertion inside the kernel fails, after which the process cannot compute anything more, not even what the id was. So
there :class:`DeferredIdCheck` replaces such ids before the kernels see them. It remembers the first of them in a tensor
on the device, which is read where the host waits for the device anyway.

Shape legend: K keys, B rows of the batch, L ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ziggurat.core.errors import FeatureError
from ziggurat.core.tables import TableSpec


class IdRange:
    """Which ids each key may have.

    Args:
        table_of: feature -> its table.
        rank: this rank, for messages.
    """

    def __init__(self, table_of: Mapping[str, TableSpec], rank: int) -> None:
        self._table_of, self._rank = table_of, rank
        self._feature_of = {key: f for f, spec in table_of.items() for key in spec.keys_of(f)}

    @property
    def keys(self) -> list[str]:
        """All keys."""
        return list(self._feature_of)

    def rows(self, key: str) -> int:
        """Returns the number of rows of the key's table."""
        return self._table_of[self._feature_of[key]].rows

    def check(self, ids: KeyedJaggedTensor) -> None:
        """Compares all ids with their tables.

        Raises:
            FeatureError: an id is outside its table; the message names the feature, the id, the table's rows and the
                rank.
        """
        values_L, counts_K = ids.values(), torch.tensor(ids.length_per_key())
        rows_K = torch.tensor([self.rows(key) for key in ids.keys()])  # noqa: SIM118
        rows_L = rows_K.repeat_interleave(counts_K, output_size=len(values_L)).to(values_L.device)
        bad_L = (values_L < 0) | (values_L >= rows_L)
        if bool(bad_L.any()):
            position = int(bad_L.nonzero()[0])
            self.refuse(ids.keys()[int((counts_K.cumsum(0) <= position).sum())], int(values_L[position]))

    def refuse(self, key: str, bad: int) -> NoReturn:
        """Raises the :class:`FeatureError` of an id."""
        feature = self._feature_of[key]
        spec = self._table_of[feature]
        raise FeatureError(
            f"feature {feature!r}: id {bad} is outside [0, {spec.rows}), the rows of table {spec.name!r}, "
            f"on rank {self._rank}",
            "encode the rows with the transform that was fitted with this model (`ziggurat prepare`)",
        ) from None


class DeferredIdCheck:
    """Confines ids to their tables without waiting for the device, and remembers the first that was outside.

    Args:
        id_range: which ids each key may have.
        device: the device of the ids.
    """

    def __init__(self, id_range: IdRange, device: torch.device) -> None:
        self._id_range, self._device = id_range, device
        self._keys = id_range.keys
        self._constants: dict[tuple[str, ...], tuple[Tensor, Tensor]] = {}
        # Whether an id was outside its table, the place of its key in _keys, and the id.
        self._first = torch.zeros(3, dtype=torch.int64, device=device)

    def confined(self, ids: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Returns the ids, in which the nearest row of the table replaces each id that is outside of it."""
        keys, values_L = tuple(ids.keys()), ids.values()
        if not len(values_L):
            return ids
        last_K, place_K = self._of(keys)
        counts_K = ids.lengths().view(len(keys), -1).sum(1)
        key_L = torch.repeat_interleave(counts_K, output_size=len(values_L))
        confined_L = torch.minimum(values_L.clamp(min=0), last_K[key_L])
        bad_L = confined_L != values_L
        at = bad_L.view(torch.uint8).argmax(0, keepdim=True)  # the first bad one; the first of all if none is
        place = place_K.index_select(0, key_L.index_select(0, at))
        found = torch.cat([bad_L.index_select(0, at).long(), place, values_L.index_select(0, at).long()])
        self._first = torch.where(self._first[:1] > 0, self._first, found)
        return KeyedJaggedTensor(
            keys=ids.keys(),
            values=confined_L,
            lengths=ids.lengths(),
            offsets=ids.offsets_or_none(),
            stride=ids.stride(),
            length_per_key=ids.length_per_key_or_none(),
            offset_per_key=ids.offset_per_key_or_none(),
        )

    def check(self) -> None:
        """Waits for the device and looks for an id outside its table among all since the last call.

        Raises:
            FeatureError: there is one. What was computed from its batch or later must not be used.
        """
        found, place, bad = self._first.tolist()
        if found:
            self._first = torch.zeros_like(self._first)
            self._id_range.refuse(self._keys[place], bad)

    def _of(self, keys: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        """Returns the last row of each key's table and the key's place in ``_keys``, both (K,), on the device."""
        if keys not in self._constants:
            last_K = torch.tensor([self._id_range.rows(key) - 1 for key in keys], device=self._device)
            place_K = torch.tensor([self._keys.index(key) for key in keys], device=self._device)
            self._constants[keys] = (last_K, place_K)
        return self._constants[keys]
