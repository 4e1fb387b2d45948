"""A training step of the dense part, and a matrix product as its reference, for ``dense_speed``.

Shape legend: B batch, F features, D embedding dim, T tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ziggurat.interactions.field_blocks.ensemble import Ensemble
from ziggurat.interactions.field_blocks.linear_compression import LinearCompression
from ziggurat.interactions.field_blocks.pairs_block import PairsBlock
from ziggurat.interactions.field_blocks.self_attention import SelfAttention
from ziggurat.interactions.heads.shared_bottom import SharedBottom
from ziggurat.interactions.mlp import MLP
from ziggurat.models.build import ModelConfig
from ziggurat.models.dhen import DHEN
from ziggurat.models.model import Model, ModelDims
from ziggurat.models.wukong import Wukong
from ziggurat.optim.dense import DenseOptimizerConfig
from ziggurat.optim.torch_optimizers import Adam

Precision = Literal["fp32", "bf16"]

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
_HEAD = SharedBottom.Config(bottom=MLP.Config(hidden=(512, 256)))
_MLP = MLP.Config(hidden=(512,))
_LINEAR = LinearCompression.Config(outputs=16)
_PAIRS = PairsBlock.Config(outputs=16, mlp=_MLP)
_ATTENTION = SelfAttention.Config(outputs=16, heads=2, feed_forward=256)
_CRITEO = ModelDims(dense=0, features=39, dim=64)
_FRAPPE = ModelDims(dense=0, features=10, dim=16)


@dataclass(frozen=True, slots=True)
class Case:
    """A model of a certain size.

    Attributes:
        config: the model's config.
        dims: the sizes of its inputs.
        modes: the modes in which it is measured, each as the precision and whether it is compiled.
        description: the description for the notes.
    """

    config: ModelConfig
    dims: ModelDims
    modes: tuple[tuple[Precision, bool], ...]
    description: str


_ALL_MODES: tuple[tuple[Precision, bool], ...] = (("fp32", False), ("fp32", True), ("bf16", False), ("bf16", True))
_EAGER: tuple[tuple[Precision, bool], ...] = (("fp32", False), ("bf16", False))

CASES = {
    "wukong": Case(
        Wukong.Config(layers=3, fm_outputs=16, linear_outputs=16, rank=24, fm_mlp=_MLP, head=_HEAD),
        _CRITEO,
        _ALL_MODES,
        "3 layers, n_F = n_L = 16, k = 24, FMB's MLP 512",
    ),
    "dhen": Case(
        DHEN.Config(layer=Ensemble.Config(blocks=(_PAIRS, _LINEAR)), layers=3, head=_HEAD),
        _CRITEO,
        _ALL_MODES,
        "3 layers of dot_product (MLP 512) and linear, 16 fields each, concatenated",
    ),
    "dhen_attention": Case(
        DHEN.Config(layer=Ensemble.Config(blocks=(_ATTENTION, _LINEAR)), layers=3, head=_HEAD),
        _CRITEO,
        _EAGER,
        "3 layers of self_attention (2 heads, feed-forward 256) and linear, 16 fields each, concatenated",
    ),
    "wukong_small": Case(
        Wukong.Config(layers=2, rank=8), _FRAPPE, _EAGER, "Frappe's size: 2 layers, n_F = n_L = 8, k = 8, FMB's MLP 256"
    ),
}


class Step:
    """The training step of one case; a call takes a step.

    Args:
        case: the model.
        precision: the precision of the forward pass.
        compiled: whether torch.compile compiles the model.
        rows: the batch size.
        optimizer: the optimizer of the dense part; default: Adam.

    Attributes:
        gflop: the GFLOPs of a step.
        model: the trained model.
        emb_BFD: the looked-up embeddings, a leaf.
        optimizer: the optimizer of the dense part.
    """

    def __init__(
        self,
        case: Case,
        precision: Precision,
        compiled: bool,
        rows: int,
        optimizer: DenseOptimizerConfig | None = None,
    ) -> None:
        torch.manual_seed(0)
        self.model: Model = case.config.build(case.dims)
        self._call: Callable[..., Tensor] = torch.compile(self.model) if compiled else self.model
        self.optimizer = (optimizer or Adam()).build(dict(self.model.named_parameters()))
        self._bf16 = precision == "bf16"
        self.emb_BFD = nn.Parameter(torch.randn(rows, case.dims.features, case.dims.dim))
        self._dense_BF = torch.randn(rows, case.dims.dense)
        self._labels_BT = (torch.rand(rows, 1) < 0.3).float()
        self.gflop = 3 * rows * self.model.flops() / 1e9

    def __call__(self) -> float:
        """Takes a step and returns its loss."""
        self.optimizer.zero_grad()
        self.emb_BFD.grad = None
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._bf16):
            logits_BT = self._call(self._dense_BF, self.emb_BFD)
        loss = F.binary_cross_entropy_with_logits(logits_BT, self._labels_BT)
        loss.backward()
        self.optimizer.step()
        return loss.item()


class Matmul:
    """A product of two square matrices into preallocated memory; a call computes it.

    Args:
        precision: the dtype of the matrices.
        side: the number of their rows.

    Attributes:
        gflop: the GFLOPs of a product.
    """

    def __init__(self, precision: Precision, side: int) -> None:
        dtype = DTYPES[precision]
        self.a, self.b = (torch.randn(side, side).to(dtype) for _ in range(2))
        self.out = torch.empty(side, side, dtype=dtype)
        self.gflop = 2 * side**3 / 1e9

    def __call__(self) -> None:
        torch.mm(self.a, self.b, out=self.out)
