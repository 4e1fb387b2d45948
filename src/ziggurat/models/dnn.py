"""DNN: a head over the flattened row; with one task and the default head, embeddings and an MLP.

Shape legend: B rows, F fields, D embedding dim, T tasks.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ziggurat.interactions.heads.shared_bottom import SharedBottom
from ziggurat.models.growth import deeper
from ziggurat.models.heads import HeadConfig
from ziggurat.models.model import Model, ModelDims, ModelSettings, flatten_inputs


class DNN(Model):
    """logits = head(x), with x the flattened dense features and embeddings.

    With the head ``mmoe`` it is MMoE, with ``ple`` it is PLE.

    Source: Covington et al., "Deep Neural Networks for YouTube Recommendations", RecSys 2016, section 4; the heads
    name their own sources.
    """

    class Config(ModelSettings):
        """The head is the only setting."""

        name: Literal["dnn"] = "dnn"

        head: HeadConfig = SharedBottom.Config()
        """Maps the flattened row to the logits."""

        def deeper(self, times: int) -> DNN.Config:
            part = "bottom" if isinstance(self.head, SharedBottom.Config) else "expert"
            grown = deeper(getattr(self.head, part), times)
            return self.model_copy(update={"head": self.head.model_copy(update={part: grown})})

        def build(self, dims: ModelDims) -> DNN:
            return DNN(self, dims)

    def __init__(self, config: DNN.Config, dims: ModelDims) -> None:
        super().__init__(dims)
        self.head = config.head.build_checked(dims.flat, dims.tasks)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        return self.head(flatten_inputs(dense_BF, emb_BFD))
