"""The basic blocks that the contract tests cover, each with a reference in plain loops over rows, fields and dims.

A new block joins ``test_block_contract.py`` by adding a case here, or, if it is made of other blocks, in
``composed_cases.py``.
"""

from __future__ import annotations

import torch
from block_case import BlockCase
from torch import Tensor

from ziggurat.interactions.cross import Cross
from ziggurat.interactions.dense_embedding import DenseEmbedding
from ziggurat.interactions.dot_product import DotProduct
from ziggurat.interactions.factorization_machine import FactorizationMachine
from ziggurat.interactions.linear import Linear
from ziggurat.interactions.mlp import MLP
from ziggurat.interactions.numeric_embedding import NumericEmbedding


def linear_reference(block: Linear, inputs: Tensor) -> Tensor:
    weight, bias = block.layer.weight, block.layer.bias
    return torch.stack([torch.stack([(row.reshape(-1) * w).sum() for w in weight]) for row in inputs]) + (
        0 if bias is None else bias
    )


def mlp_reference(block: MLP, inputs: Tensor) -> Tensor:
    """Applies hidden ReLU layers, then a linear one; parameters come in pairs (weight, bias)."""
    parameters = list(block.parameters())
    pairs = list(zip(parameters[::2], parameters[1::2], strict=True))
    rows: list[Tensor] = []
    for row in inputs:
        state = row.reshape(-1)
        for position, (weight, bias) in enumerate(pairs):
            state = torch.stack([(state * w).sum() for w in weight]) + bias
            if position < len(pairs) - 1:
                state = torch.where(state > 0, state, 0.0)
        rows.append(state)
    return torch.stack(rows)


def fm_reference(block: FactorizationMachine, inputs: Tensor) -> Tensor:
    del block
    rows: list[Tensor] = []
    for row in inputs:
        total = 0.0 * row[0]
        for i in range(len(row)):
            for j in range(i + 1, len(row)):
                total = total + row[i] * row[j]
        rows.append(total[None])
    return torch.stack(rows)


def dot_reference(block: DotProduct, inputs: Tensor) -> Tensor:
    del block
    features = inputs.shape[1]
    pairs = [(i, j) for i in range(features) for j in range(i + 1, features)]
    return torch.stack([torch.stack([(row[i] * row[j]).sum() for i, j in pairs]) for row in inputs])


def cross_reference(block: Cross, inputs: Tensor) -> Tensor:
    parameters = list(block.parameters())
    rows: list[Tensor] = []
    for row in inputs:
        start = row.reshape(-1)
        state = start
        if block.rank is None:
            for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
                state = start * (weight @ state + bias) + state
        else:
            for v_RN, u_NR, bias in zip(parameters[::3], parameters[1::3], parameters[2::3], strict=True):
                state = start * (u_NR @ (v_RN @ state) + bias) + state
        rows.append(state.reshape(row.shape))
    return torch.stack(rows)


def dense_embedding_reference(block: DenseEmbedding, inputs: Tensor) -> Tensor:
    return mlp_reference(block.mlp, inputs).reshape(len(inputs), block.out_features, block.dim)


def numeric_embedding_reference(block: NumericEmbedding, inputs: Tensor) -> Tensor:
    return torch.stack(
        [torch.stack([x * v for x, v in zip(row, block.vectors_FD, strict=True)]) for row in inputs],
    )


RELU = MLP.Config(hidden=(7, 5))

CASES = [
    BlockCase("linear", (3, 4), lambda: Linear(12, 2), linear_reference, (2,), 2 * 12 * 2),
    BlockCase("linear-flat", (5,), lambda: Linear(5, 1, bias=False), linear_reference, (1,), 2 * 5),
    BlockCase("mlp", (3, 4), lambda: MLP(12, RELU, 2), mlp_reference, (2,), 2 * (12 * 7 + 7 * 5 + 5 * 2)),
    BlockCase("mlp-no-hidden", (6,), lambda: MLP(6, MLP.Config(hidden=()), 3), mlp_reference, (3,), 2 * 6 * 3),
    # 3 fields: 2 adds for the sum, 3 squares, 2 adds of squares, then square, subtract, halve: 10 per dim.
    BlockCase("fm", (3, 4), lambda: FactorizationMachine(3, 4), fm_reference, (1, 4), 10 * 4),
    BlockCase("fm-one-field", (1, 4), lambda: FactorizationMachine(1, 4), fm_reference, (1, 4), 4 * 4),
    BlockCase("dot", (4, 3), lambda: DotProduct(4, 3), dot_reference, (6,), 2 * 4 * 4 * 3),
    BlockCase("dot-one-pair", (2, 5), lambda: DotProduct(2, 5), dot_reference, (1,), 2 * 2 * 2 * 5),
    BlockCase("cross", (3, 2), lambda: Cross(3, 2, layers=2), cross_reference, (3, 2), 2 * (2 * 36 + 2 * 6)),
    BlockCase(
        "cross-low-rank", (3, 2), lambda: Cross(3, 2, layers=3, rank=2), cross_reference, (3, 2), 3 * (2 * 24 + 2 * 6)
    ),
    BlockCase("cross-flat", (5,), lambda: Cross(5, 1, layers=1), cross_reference, (5,), 2 * 25 + 2 * 5),
    BlockCase(
        "dense-embedding",
        (6,),
        lambda: DenseEmbedding(6, 2, 4, RELU),
        dense_embedding_reference,
        (2, 4),
        2 * (6 * 7 + 7 * 5 + 5 * 8),
    ),
    BlockCase("numeric-embedding", (6,), lambda: NumericEmbedding(6, 4), numeric_embedding_reference, (6, 4), 6 * 4),
]
