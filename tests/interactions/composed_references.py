"""References of the composed blocks, computed row by row from the formulas of their papers.

They share the block's parameters and nothing else: no batch dimension, no reshaped products, no torch layer.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ziggurat.interactions.bilinear_fusion import BilinearFusion
from ziggurat.interactions.compressed_interaction import CompressedInteraction
from ziggurat.interactions.field_blocks.attentive_compression import AttentiveCompression
from ziggurat.interactions.field_blocks.convolution import Convolution
from ziggurat.interactions.field_blocks.ensemble import Ensemble
from ziggurat.interactions.field_blocks.factorization_machine_block import FactorizationMachineBlock
from ziggurat.interactions.field_blocks.field_products import FieldProducts
from ziggurat.interactions.field_blocks.flat_mlp import FlatMLP
from ziggurat.interactions.field_blocks.gram_cross import GramCross
from ziggurat.interactions.field_blocks.linear_compression import LinearCompression
from ziggurat.interactions.field_blocks.mask_block import MaskBlock, MaskedFields
from ziggurat.interactions.field_blocks.pairs_block import PairsBlock
from ziggurat.interactions.field_blocks.self_attention import SelfAttention
from ziggurat.interactions.field_blocks.stack import LayerStack
from ziggurat.interactions.gate import Gate
from ziggurat.interactions.heads.mmoe import MMoE
from ziggurat.interactions.heads.ple import PLE
from ziggurat.interactions.heads.shared_bottom import SharedBottom
from ziggurat.interactions.interacting import Interacting
from ziggurat.interactions.mlp import MLP

EPSILON = 1e-5


def affine(layer: Any, row: Tensor) -> Tensor:
    outputs = torch.stack([(weight * row).sum() for weight in layer.weight])
    return outputs if layer.bias is None else outputs + layer.bias


def norm(layer: Any, row: Tensor) -> Tensor:
    """Applies layer norm over the last dimension, row by row."""
    mean = row.sum(-1, keepdim=True) / row.shape[-1]
    variance = ((row - mean) ** 2).sum(-1, keepdim=True) / row.shape[-1]
    return (row - mean) / torch.sqrt(variance + EPSILON) * layer.weight + layer.bias


def relu(row: Tensor) -> Tensor:
    return torch.where(row > 0, row, 0.0)


def softmax(row: Tensor) -> Tensor:
    return torch.exp(row) / torch.exp(row).sum(-1, keepdim=True)


def mlp(block: MLP, row: Tensor) -> Tensor:
    """Applies linear layers, with a ReLU after each hidden one."""
    state = row.reshape(-1)
    linears = [layer for layer in block.layers if isinstance(layer, nn.Linear)]
    activations = sum(isinstance(layer, nn.ReLU) for layer in block.layers)
    for position, layer in enumerate(linears):
        state = affine(layer, state)
        if position < activations:
            state = relu(state)
    return state


def mixture(block: LinearCompression, row_FD: Tensor) -> Tensor:
    fields = [sum(w * field for w, field in zip(weights, row_FD, strict=True)) for weights in block.mixture.weight]
    return torch.stack([torch.as_tensor(field) for field in fields])


def attentive(block: AttentiveCompression, row_FD: Tensor) -> Tensor:
    return mlp(block.mlp, mixture(block.compression, row_FD)).reshape(block.out_features, block.rank)


def products(block: FieldProducts, row_FD: Tensor) -> Tensor:
    """Returns X Xᵀ, or (X Xᵀ) Y with the F×F matrix built first."""
    gram = torch.stack([torch.stack([(a * b).sum() for b in row_FD]) for a in row_FD])
    if block.attention is not None:
        return gram @ attentive(block.attention, row_FD)
    return gram if block.mixtures_FK is None else gram @ block.mixtures_FK


def fm_block(block: FactorizationMachineBlock, row_FD: Tensor) -> Tensor:
    normed = norm(block.norm, products(block.products, row_FD).reshape(-1))
    return mlp(block.mlp, normed).reshape(block.out_features, -1)


def pairs_block(block: PairsBlock, row_FD: Tensor) -> Tensor:
    count = len(row_FD)
    dots = [(row_FD[i] * row_FD[j]).sum() for i in range(count) for j in range(i + 1, count)]
    return mlp(block.mlp, torch.stack(dots)).reshape(block.out_features, -1)


def flat_mlp(block: FlatMLP, row_FD: Tensor) -> Tensor:
    return mlp(block.mlp, row_FD).reshape(block.out_features, -1)


def gram_cross(block: GramCross, row_FD: Tensor) -> Tensor:
    gram_DD = sum(torch.outer(field, field) for field in row_FD)
    return block.mixture.weight @ torch.as_tensor(gram_DD) + block.bias_FD


def convolution(block: Convolution, row_FD: Tensor) -> Tensor:
    kernel, bias = block.kernel.weight, block.kernel.bias
    assert bias is not None
    outputs, features, taps = kernel.shape
    dim = row_FD.shape[1]
    rows: list[Tensor] = []
    for o in range(outputs):
        for d in range(dim):
            total = bias[o]
            for f in range(features):
                for t in range(taps):
                    place = d + t - (taps - 1) // 2
                    if 0 <= place < dim:
                        total = total + kernel[o, f, t] * row_FD[f, place]
            rows.append(total)
    return torch.stack(rows).reshape(outputs, dim)


def heads_attend(query: Tensor, key: Tensor, value: Tensor, heads: int, scale: float) -> Tensor:
    """Returns, head by head, the softmax of the scaled scores times the values, concatenated; all are (F, H·E)."""
    width = query.shape[1] // heads
    outputs: list[Tensor] = []
    for h in range(heads):
        part = slice(h * width, (h + 1) * width)
        outputs.append(softmax(query[:, part] @ key[:, part].T * scale) @ value[:, part])
    return torch.cat(outputs, dim=1)


def self_attention(block: SelfAttention, row_FD: Tensor) -> Tensor:
    projected = torch.stack([affine(block.queries_keys_values, field) for field in row_FD])
    scale = 1 / math.sqrt(block.dim // block.heads)
    mixed = heads_attend(*projected.split(block.dim, dim=1), block.heads, scale)
    state = norm(block.attention_norm, row_FD + torch.stack([affine(block.output, field) for field in mixed]))
    if block.feed_forward is not None:
        first, _, second = block.feed_forward
        inner = torch.stack([affine(second, relu(affine(first, field))) for field in state])
        state = norm(block.feed_forward_norm, state + inner)
    return state if block.mixture is None else mixture(block.mixture, state)


def interacting(block: Interacting, row_FD: Tensor) -> Tensor:
    state = row_FD
    for projection, residual in zip(block.query_key_values, block.residuals, strict=True):
        projected = torch.stack([affine(projection, field) for field in state])
        attended = heads_attend(*projected.split(block.width, dim=1), block.heads, block.scale)
        state = relu(attended + torch.stack([affine(residual, field) for field in state]))
    return state


def mask_block(block: MaskBlock, row: Tensor) -> Tensor:
    first, _, second = block.mask
    mask = affine(second, relu(affine(first, row)))
    return relu(norm(block.norm, affine(block.hidden, row * mask)))


def masked_fields(block: MaskedFields, row_FD: Tensor) -> Tensor:
    first, _, second = block.block.mask
    mask = affine(second, relu(affine(first, row_FD.reshape(-1))))
    masked = norm(block.norm, row_FD).reshape(-1) * mask
    return relu(norm(block.block.norm, affine(block.block.hidden, masked))).reshape(block.out_features, -1)


def gate(block: Gate, row: Tensor) -> Tensor:
    return row * 2 / (1 + torch.exp(-mlp(block.mlp, row)))


def fusion(block: BilinearFusion, first: Tensor, second: Tensor) -> Tensor:
    """Sums, for each task, the weighted products of the two streams' numbers within each head."""
    tasks, wide, other = block.out_features, len(first) // block.heads, len(second) // block.heads
    totals = list(affine(block.first, first) + affine(block.second, second))
    for h in range(block.heads):
        for i in range(wide):
            for j in range(other):
                for t in range(tasks):
                    weight = block.pairs_HIJT[h, i, j * tasks + t]
                    totals[t] = totals[t] + weight * first[h * wide + i] * second[h * other + j]
    return torch.stack(totals)


def joined(block: Any, row: Tensor) -> Tensor:
    return fusion(block.fusion, *row.split(block.cut))


def compressed_interaction(block: CompressedInteraction, row_FD: Tensor) -> Tensor:
    state, layers = row_FD, list[Tensor]()
    for kernel in block.kernels:
        weights = kernel.weight.reshape(-1, len(state), len(row_FD))
        maps: list[Tensor] = []
        for weight in weights:
            total = 0 * row_FD[0]
            for i in range(len(state)):
                for j in range(len(row_FD)):
                    total = total + weight[i, j] * state[i] * row_FD[j]
            maps.append(total)
        state = torch.stack(maps)
        layers.append(state)
    return torch.cat(layers)


def shared_bottom(block: SharedBottom, row: Tensor) -> Tensor:
    shared = mlp(block.bottom, row)
    return torch.cat([mlp(tower, shared) for tower in block.towers.towers])


def mixed(gate: Any, row: Tensor, experts: list[Tensor]) -> Tensor:
    shares = softmax(affine(gate.choice, row))
    return torch.stack([share * expert for share, expert in zip(shares, experts, strict=True)]).sum(0)


def mmoe(block: MMoE, row: Tensor) -> Tensor:
    experts = [mlp(expert, row) for expert in block.experts.experts]
    states = [mixed(gate, row, experts) for gate in block.gates]
    return torch.cat([mlp(tower, state) for tower, state in zip(block.towers.towers, states, strict=True)])


def ple(block: PLE, row: Tensor) -> Tensor:
    tasks = block.out_features
    states, shared_state = [row] * tasks, row
    for layer in block.layers:
        shared = [mlp(expert, shared_state) for expert in layer.shared.experts]
        own = [[mlp(expert, state) for expert in part.experts] for part, state in zip(layer.own, states, strict=True)]
        if layer.shared_gate is not None:
            everything = [expert for part in own for expert in part] + shared
            next_shared = mixed(layer.shared_gate, shared_state, everything)
        else:
            next_shared = shared_state
        states = [mixed(gate, state, part + shared) for gate, state, part in zip(layer.gates, states, own, strict=True)]
        shared_state = next_shared
    return torch.cat([mlp(tower, state) for tower, state in zip(block.towers.towers, states, strict=True)])


REFERENCES: dict[type, Any] = {
    FactorizationMachineBlock: fm_block,
    LinearCompression: mixture,
    PairsBlock: pairs_block,
    GramCross: gram_cross,
    SelfAttention: self_attention,
    Convolution: convolution,
    MaskedFields: masked_fields,
    FlatMLP: flat_mlp,
}


def ensemble(block: Ensemble, row_FD: Tensor) -> Tensor:
    outputs = [REFERENCES[type(part)](part, row_FD) for part in block.blocks]
    if block.combine == "concat":
        state = torch.cat(outputs)
    elif block.combine == "sum":
        state = sum(outputs[1:], outputs[0])
    else:
        assert block.weights_M is not None
        shares = softmax(block.weights_M)
        state = sum((s * output for s, output in zip(shares, outputs, strict=True)), 0 * outputs[0])
    if isinstance(block.shortcut, LinearCompression):
        state = state + mixture(block.shortcut, row_FD)
    elif block.shortcut is not None:
        state = state + row_FD
    return norm(block.norm, state)


def stack(block: LayerStack, row_FD: Tensor) -> Tensor:
    for layer in block.layers:
        assert isinstance(layer, Ensemble)
        row_FD = ensemble(layer, row_FD)
    return row_FD


def by_row(reference: Any) -> Any:
    """Returns (block, inputs) → outputs for a batch, given a reference for one row."""
    return lambda block, inputs: torch.stack([reference(block, row) for row in inputs])
