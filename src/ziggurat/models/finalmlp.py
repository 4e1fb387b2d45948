"""FinalMLP: two MLPs, each with its own gate over the row, fused by a bilinear form.

Shape legend: B rows, F fields, D embedding dim, T tasks, N numbers of a flattened row.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ziggurat.interactions.bilinear_fusion import BilinearFusion
from ziggurat.interactions.gate import Gate
from ziggurat.interactions.mlp import MLP
from ziggurat.models.growth import deeper
from ziggurat.models.model import Model, ModelDims, ModelSettings, flatten_inputs


class FinalMLP(Model):
    """logits = fusion(MLP₁(gate₁(x)), MLP₂(gate₂(x))), with x the flattened dense features and embeddings.

    Source: Mao et al., "FinalMLP", arXiv 2304.00902, section 3. The paper lets the user choose which features feed each
    gate; here it is learned constants (the paper's default if none is chosen) or the whole row.
    """

    class Config(ModelSettings):
        """The two streams, their gates and the fusion."""

        name: Literal["finalmlp"] = "finalmlp"

        first: MLP.Config = MLP.Config()
        """Hidden layers of the first stream."""

        second: MLP.Config = MLP.Config()
        """Hidden layers of the second stream."""

        gate: Literal["none", "constant", "row"] = "constant"
        """What the gates that scale each number of the row are computed from: none leaves them out, constant uses
        learned constants, row uses the row itself."""

        gate_hidden: MLP.Config = MLP.Config(hidden=(64,))
        """Hidden layers of the gates."""

        heads: Annotated[int, Field(ge=1)] = 1
        """Heads of the fusion; their number divides the last hidden width of both streams."""

        def deeper(self, times: int) -> FinalMLP.Config:
            return self.model_copy(update={"first": deeper(self.first, times), "second": deeper(self.second, times)})

        def build(self, dims: ModelDims) -> FinalMLP:
            return FinalMLP(self, dims)

    def __init__(self, config: FinalMLP.Config, dims: ModelDims) -> None:
        super().__init__(dims)
        self.constants_2C = nn.Parameter(torch.randn(2, dims.dim)) if config.gate == "constant" else None
        self.first_gate = self.second_gate = None
        if config.gate != "none":
            context = dims.flat if config.gate == "row" else dims.dim
            self.first_gate = Gate(dims.flat, context, config.gate_hidden)
            self.second_gate = Gate(dims.flat, context, config.gate_hidden)
        self.first, self.second = MLP(dims.flat, config.first), MLP(dims.flat, config.second)
        self.fusion = BilinearFusion(self.first.out_features, self.second.out_features, dims.tasks, config.heads)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        flat_BN = flatten_inputs(dense_BF, emb_BFD)
        first_BN = self._gated(self.first_gate, 0, flat_BN)
        second_BN = self._gated(self.second_gate, 1, flat_BN)
        return self.fusion(self.first(first_BN), self.second(second_BN))

    def _gated(self, gate: Gate | None, stream: int, flat_BN: Tensor) -> Tensor:
        if gate is None:
            return flat_BN
        if self.constants_2C is None:
            return gate(flat_BN)
        return gate(flat_BN, self.constants_2C[stream].expand(flat_BN.shape[0], -1))
