"""Parts as their authors get them wrong, and some that are right."""

# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ziggurat.extension import (
    Block,
    BlockSettings,
    DenseOptimizerSettings,
    HeadSettings,
    Model,
    ModelDims,
    ModelSettings,
    Placement,
    Plan,
    Planner,
    PlannerSettings,
    SequenceEncoder,
    SequenceEncoderSettings,
)


class Plain(Model):
    """A right one, of torch's own layers, without ``flops``."""

    class Config(ModelSettings):
        """One hidden layer."""

        hidden: int = 5

        def build(self, dims: ModelDims) -> Model:
            return Plain(self, dims)

    def __init__(self, config: Any, dims: ModelDims) -> None:
        super().__init__(dims)
        self.deep = nn.Sequential(nn.Linear(dims.flat, config.hidden), nn.ReLU(), nn.Linear(config.hidden, dims.tasks))

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        return self.deep(torch.cat([dense_BF, emb_BFD.flatten(1)], 1))


class OnNumbers(Plain):
    """A right one that looks at numbers, which a tensor on ``meta`` has none of."""

    class Config(Plain.Config):
        """x"""

        def build(self, dims: ModelDims) -> Model:
            return OnNumbers(self, dims)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        logits_BT = super().logits(dense_BF, emb_BFD)
        return logits_BT / 2 if logits_BT.sum().item() > 1e9 else logits_BT


class NoProducts(Plain):
    class Config(Plain.Config):
        """x"""

        def build(self, dims: ModelDims) -> Model:
            return NoProducts(self, dims)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        return emb_BFD.sum((1, 2)).unsqueeze(1) * self.get_parameter("deep.2.bias")


class LogitsOf(Plain):
    """Returns something else than logits, as the config says."""

    class Config(Plain.Config):
        """x"""

        what: str

        def build(self, dims: ModelDims) -> Model:
            return LogitsOf(self, dims)

    def __init__(self, config: LogitsOf.Config, dims: ModelDims) -> None:
        super().__init__(config, dims)
        self.what = config.what

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        found: Any = super().logits(dense_BF, emb_BFD)
        changes: dict[str, Callable[[], Any]] = {
            "one more": lambda: torch.cat([found, found], 1),
            "flat": lambda: found.flatten(),
            "one row": lambda: found[:1],
            "none": lambda: None,
            "dict": lambda: {"logits": found},
            "counts": lambda: (found > 0).long(),
            "detached": lambda: found.detach(),
            "nan": lambda: found * torch.nan,
            "large batches": lambda: found.T if len(found) > 20 else found,
        }
        return changes[self.what]()


class Raises(Plain):
    class Config(Plain.Config):
        """x"""

        def build(self, dims: ModelDims) -> Model:
            return Raises(self, dims)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        return self.deep(emb_BFD.flatten(1)[:, 1:])


class Late(Plain):
    """Fails for more rows than it is checked with."""

    class Config(Plain.Config):
        """x"""

        def build(self, dims: ModelDims) -> Model:
            return Late(self, dims)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        if len(dense_BF) > 20:
            Path("/no/such/file").read_text()
        return super().logits(dense_BF, emb_BFD)


class Builds(Plain):
    """``build`` returns or does something else, as the config says."""

    class Config(Plain.Config):
        """x"""

        what: str

        def build(self, dims: ModelDims) -> Any:
            if self.what == "frozen":
                self.hidden = 4
            if self.what == "raises":
                return dims.fields  # pyright: ignore[reportAttributeAccessIssue]
            return {"none": None, "module": nn.Linear(3, 3)}[self.what]


class NoArguments(Plain):
    class Config(Plain.Config):
        """x"""

        def build(self) -> Any:
            return None


class Fields(Block):
    """A block that returns something else, as the config says; it does not say its FLOPs."""

    class Config(BlockSettings):
        """x"""

        what: str = "right"

        def build(self, features: int, dim: int) -> Block:
            return Fields(self.what, features, dim)

    def __init__(self, what: str, features: int, dim: int) -> None:
        super().__init__()
        self.what, self.mix = what, nn.Linear(dim, dim)
        if what != "no out_features":
            self.out_features = 2 if what == "other out_features" else features

    def forward(self, emb_BFD: Tensor) -> Tensor:
        mixed = self.mix(emb_BFD)
        changes = {
            "wide": lambda: torch.cat([mixed, mixed], 2),
            "flat": lambda: mixed.flatten(1),
            "double": mixed.double,
            "raises": lambda: mixed[:, 99],
        }
        return changes[self.what]() if self.what in changes else mixed


class Head(Block):
    class Config(HeadSettings):
        """x"""

        more: int = 0

        def build(self, inputs: int, tasks: int) -> Block:
            return Head(inputs, tasks + self.more)

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.out_features, self.tower = outputs, nn.Linear(inputs, outputs)

    def forward(self, row_BN: Tensor) -> Tensor:
        return self.tower(row_BN)


class Mean(SequenceEncoder):
    """The mean of the positions, or something wrong, as the config says."""

    class Config(SequenceEncoderSettings):
        """x"""

        what: str = "right"

        def build(self, positions: int, dim: int) -> SequenceEncoder:
            return Mean(self.what)

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.out_features = what, 1

    def forward(self, positions_BSD: Tensor, mask_BS: Tensor, target_BD: Tensor | None = None) -> Tensor:
        mask_BS1 = mask_BS.unsqueeze(2)
        if self.what == "unmasked":
            return positions_BSD.mean(1) * mask_BS1.any(1)
        if self.what == "nan":
            return (positions_BSD * mask_BS1).sum(1) / mask_BS1.sum(1)
        mean_BD = (positions_BSD * mask_BS1).sum(1) / mask_BS1.sum(1).clamp(min=1)
        changes = {"bias": lambda: mean_BD + 1, "wide": lambda: torch.cat([mean_BD, mean_BD], 1)}
        return changes[self.what]() if self.what in changes else mean_BD


class Descent(torch.optim.Optimizer):
    class Config(DenseOptimizerSettings):
        """x"""

        lr: float = 0.1
        what: str = "right"

        def make(self, groups: list[dict[str, Any]]) -> Any:
            if self.what == "half":
                return Descent(groups[:1], self.lr, self.what)
            if self.what == "rate":
                return Descent(groups, self.lr, self.what, key="rate")
            return None if self.what == "none" else Descent(groups, self.lr, self.what)

    def __init__(self, groups: Any, lr: float, what: str, key: str = "lr") -> None:
        super().__init__(groups, {key: lr})
        self.what = what

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                divisor = torch.zeros_like(parameter) if self.what == "nan" else 1
                change = parameter.grad[:, 0] if self.what == "raises" else parameter.grad / divisor
                parameter.sub_(change, alpha=group["lr"])


class FirstDevice(Planner):
    class Config(PlannerSettings):
        """x"""

        what: str = "right"

        def build(self, time_parts: Any = None, progress: Any = None) -> Planner:
            return FirstDevice(self.what)

    def __init__(self, what: str) -> None:
        self.what = what

    def plan(self, problem: Any) -> Any:
        if self.what == "none":
            return None
        if self.what == "raises":
            return problem.world_size
        tables = problem.tables[1:] if self.what == "a table less" else problem.tables
        topology = problem.topology
        placements = {table.name: Placement("table_wise", (0,)) for table in tables}
        return Plan(topology.world_size, placements, topology.devices)


class ToNumpy(Plain):
    class Config(Plain.Config):
        """x"""

        def build(self, dims: ModelDims) -> Model:
            return ToNumpy(self, dims)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        logits_BT = super().logits(dense_BF, emb_BFD)
        return torch.from_numpy(np.tanh(logits_BT.detach().numpy()))


class Sum(Model):
    """Adds all its inputs up, and has at most parameters that are not trained."""

    class Config(ModelSettings):
        """Whether it has a frozen weight."""

        frozen: bool = False

        def build(self, dims: ModelDims) -> Model:
            return Sum(self, dims)

    def __init__(self, config: Any, dims: ModelDims) -> None:
        super().__init__(dims)
        self.weight = nn.Parameter(torch.ones(1), requires_grad=False) if config.frozen else 1.0

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        return self.weight * (emb_BFD.sum((1, 2)) + dense_BF.sum(1))[:, None]
