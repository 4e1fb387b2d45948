"""The step count of FBGEMM's Adam, from which it corrects the bias of its moments.

FBGEMM counts look-ups, also those of evaluations, and its count is part of no state: a resumed training would begin at
zero. Here updates are counted, as :class:`~ziggurat.embeddings.row_table.RowTable` counts them on the CPU, in a tensor
that checkpoints hold; each look-up is told the count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def count_steps(kernel: nn.Module, tables: Sequence[str], counts: dict[str, Tensor]) -> None:
    """Makes an FBGEMM kernel take its step from counts of the updates.

    The tables of a kernel have one count. They differ only after a warm start took the states of some of them; the
    least then counts, with which steps are the smallest.

    Args:
        kernel: the FBGEMM module.
        tables: the names of its tables.
        counts: table -> the number of its updates, int64, (), on the CPU; live. Tables that are missing are added, and
            counted by this kernel; the others are counted by another one.
    """
    own = [counts.setdefault(name, torch.zeros((), dtype=torch.int64)) for name in tables if name not in counts]
    read = [counts[name] for name in dict.fromkeys(tables)]

    def tell(module: Any, args: Any) -> None:
        done = min(int(each) for each in read)
        module.iter_cpu.fill_(done)
        module.iter.fill_(done)

    def count(_: Tensor) -> None:
        for each in own:
            each += 1

    def looked_up(module: Any, args: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(count)

    kernel.register_forward_pre_hook(tell)
    kernel.register_forward_hook(looked_up)
