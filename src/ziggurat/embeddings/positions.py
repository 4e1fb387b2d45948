"""Splits the last positions of a sequence into keys of their own, each with at most one id per row.

A table cannot be in two TorchRec collections at once, and a history usually shares the table of its item. So each
position is looked up as a feature of one id, with the same kernels, optimizers and plans as all features. A row that
both item and history touch is updated once, with the sum of its gradients.

Shape legend: B rows, S positions, L existing ids, N = S·B bags.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from ziggurat.core.tables import TableSpec


def split_positions(
    sequences: KeyedJaggedTensor, tables: Mapping[str, TableSpec]
) -> tuple[KeyedJaggedTensor, dict[str, Tensor]]:
    """Returns the ids under the keys that tables look up, and mask_BS of each sequence with positions.

    Args:
        sequences: the ids of each sequence.
        tables: sequence -> its table, which defines the number of positions.
    """
    keys: list[str] = []
    values: list[Tensor] = []
    lengths: list[Tensor] = []
    masks: dict[str, Tensor] = {}
    for name in sequences.keys():  # noqa: SIM118 - a KeyedJaggedTensor is no mapping
        sequence, table = sequences[name], tables[name]
        values_L, lengths_N = sequence.values(), sequence.lengths()
        if name in table.positions:
            values_L, mask_BS = _last_ids(sequence, table.positions[name])
            lengths_N = mask_BS.T.flatten().to(lengths_N.dtype)
            masks[name] = mask_BS
        keys.extend(table.keys_of(name))
        values.append(values_L)
        lengths.append(lengths_N)
    return KeyedJaggedTensor(keys=keys, values=torch.cat(values), lengths=torch.cat(lengths)), masks


def _last_ids(sequence: JaggedTensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the last ids grouped by position, most recent first (values_L), and which positions exist (mask_BS)."""
    lengths_B = sequence.lengths()
    back_S1 = torch.arange(count, device=lengths_B.device).unsqueeze(1)
    mask_SB = back_S1 < lengths_B
    place_SB = lengths_B.long().cumsum(0) - 1 - back_S1
    return sequence.values()[place_SB[mask_SB]], mask_SB.T
