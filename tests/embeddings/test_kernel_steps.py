"""The step that Adam's kernel is told is the number of updates, whatever is looked up besides.

FBGEMM has Adam's kernel on CUDA only (``tests/cuda`` trains with it); this module counts as it does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ziggurat.embeddings.kernel_steps import count_steps


class CountingKernel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("iter", torch.zeros(1, dtype=torch.int64))
        self.iter_cpu = torch.zeros(1, dtype=torch.int64)
        self.used: list[int] = []

    def forward(self) -> Tensor:
        if self.iter_cpu.item() == 0:
            self.iter_cpu.fill_(self.get_buffer("iter").item())
        self.used.append(int(self.iter_cpu.add_(1).item()))
        self.get_buffer("iter").add_(1)
        return self.weight * 2


def test_only_updates_count() -> None:
    kernel, counts = CountingKernel(), dict[str, Tensor]()
    count_steps(kernel, ["user", "item"], counts)
    with torch.no_grad():
        kernel()
    for _ in range(3):
        kernel().sum().backward()
        with torch.no_grad():
            kernel()
    assert {name: int(steps) for name, steps in counts.items()} == {"user": 3, "item": 3}
    assert kernel.used == [1, 1, 2, 2, 3, 3, 4]


def test_a_restored_count_goes_on_and_the_least_is_used() -> None:
    kernel, counts = CountingKernel(), dict[str, Tensor]()
    count_steps(kernel, ["user", "item"], counts)
    kernel().sum().backward()
    for name, steps in (("user", 40), ("item", 7)):
        counts[name].copy_(torch.tensor(steps))
    kernel().sum().backward()
    assert kernel.used == [1, 8]
    assert {name: int(steps) for name, steps in counts.items()} == {"user": 41, "item": 8}


def test_a_table_of_two_kernels_is_counted_once() -> None:
    first, second, counts = CountingKernel(), CountingKernel(), dict[str, Tensor]()
    count_steps(first, ["user", "user"], counts)
    count_steps(second, ["user", "item"], counts)
    for _ in range(2):
        (first().sum() + second().sum()).backward()
    assert {name: int(steps) for name, steps in counts.items()} == {"user": 2, "item": 2}
    assert first.used == second.used == [1, 2]
