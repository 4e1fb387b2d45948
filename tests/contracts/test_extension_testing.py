"""The checks that parts' own tests call: right parts pass, and each broken promise is named."""

# pyright: reportIncompatibleVariableOverride=false
from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import faulty_parts
import numpy as np
import pytest
import torch
from faulty_parts import Descent, Fields, FirstDevice, Head, Mean, Plain
from torch import Tensor, nn

from ziggurat.core.errors import ConfigError, NoFeasiblePlan
from ziggurat.extension import (
    Block,
    BlockSettings,
    DenseOptimizerSettings,
    Model,
    ModelDims,
    ModelSettings,
    Planner,
    PlannerSettings,
)
from ziggurat.extension_testing import (
    check_block,
    check_dense_optimizer,
    check_head,
    check_model,
    check_planner,
    check_sequence_encoder,
)
from ziggurat.interactions.field_blocks.linear_compression import LinearCompression
from ziggurat.models.deepfm import DeepFM
from ziggurat.optim.torch_optimizers import Adam
from ziggurat.planning.rules import Rules


def test_right_parts_pass() -> None:
    check_model(Plain.Config())
    check_model(DeepFM.Config())
    check_block(Fields.Config())
    check_block(LinearCompression.Config(outputs=3))
    check_head(Head.Config())
    check_sequence_encoder(Mean.Config())
    check_dense_optimizer(Descent.Config())
    check_dense_optimizer(Adam())
    check_planner(FirstDevice.Config())
    check_planner(Rules.Config())


class Wrong(Plain):
    """Breaks a promise that one batch does not show, as the config says."""

    class Config(Plain.Config):
        """x"""

        what: str

        def build(self, dims: ModelDims) -> Model:
            return Wrong(self, dims)

    def __init__(self, config: Wrong.Config, dims: ModelDims) -> None:
        super().__init__(config, dims)
        self.what = config.what
        self.hidden_state = torch.rand(1)
        if config.what == "numpy":
            drawn = np.random.default_rng().normal(size=config.hidden)
            self.get_parameter("deep.0.bias").data[:] = torch.from_numpy(drawn)
        if config.what == "unused":
            self.unused = nn.Linear(3, 3)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        logits_BT = super().logits(dense_BF, emb_BFD)
        changes: dict[str, Any] = {
            "rows": lambda: logits_BT - logits_BT.mean(0),
            "state": lambda: logits_BT * self.hidden_state,
            "constant": lambda: super(Wrong, self).logits(dense_BF, emb_BFD.detach()),
        }
        return changes[self.what]() if self.what in changes else logits_BT

    def flops(self) -> int:
        return 7 if self.what == "flops" else 10**6


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("numpy", r"Wrong: deep.0.bias differs between two builds with the same seed\n  hint: draw initial weights"),
        ("unused", r"Wrong: no gradient reaches unused.weight, unused.bias\n  hint: use it in forward"),
        ("constant", r"Wrong: no gradient reaches emb_BFD"),
        ("rows", r"Wrong: a row's output in a batch of 5 differs from its output alone"),
        (
            "state",
            r"Wrong: after load_state_dict of its state_dict another one returns other numbers\n  hint: .*buffer",
        ),
        ("flops", r"Wrong: flops\(\) says 7, torch counts 370 for the matrix products of a row"),
    ],
)
def test_a_broken_promise_of_a_model_is_named(what: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_model(Wrong.Config(what=what))


def test_what_the_config_check_finds_is_found() -> None:
    with pytest.raises(ConfigError, match=r"^faulty_parts:LogitsOf: logits returned None, expected \(rows, tasks\)"):
        check_model(faulty_parts.LogitsOf.Config(what="none"))
    with pytest.raises(ConfigError, match=r"^faulty_parts:Fields: forward returned \(2, 40\)"):
        check_block(Fields.Config(what="flat"))
    with pytest.raises(ConfigError, match=r"^faulty_parts:Head: forward returned \(3, 3\), expected \(rows, tasks\)"):
        check_head(Head.Config(more=1))
    with pytest.raises(ConfigError, match=r"^faulty_parts:Mean: what forward returned depends on vectors where"):
        check_sequence_encoder(Mean.Config(what="unmasked"))
    with pytest.raises(ConfigError, match=r"^faulty_parts:Descent: make returned None"):
        check_dense_optimizer(Descent.Config(what="none"))
    with pytest.raises(ConfigError, match=r"^faulty_parts:FirstDevice: plan returned None"):
        check_planner(FirstDevice.Config(what="none"))


class Miscounted(Fields):
    class Config(BlockSettings):
        """x"""

        def build(self, features: int, dim: int) -> Block:
            return Miscounted("right", features, dim)

    def matmul_flops(self) -> int:
        return 641


def test_flops_of_a_block_are_those_of_torch() -> None:
    with pytest.raises(ConfigError, match=r"Miscounted: matmul_flops\(\) says 641, torch counts 640 for the matrix"):
        check_block(Miscounted.Config())


class Step(torch.optim.Optimizer):
    """Breaks a promise that one step does not show, as the config says."""

    class Config(DenseOptimizerSettings):
        """x"""

        lr: float = 0.1
        what: str

        def make(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
            return Step(groups, self.lr, self.what)

    def __init__(self, groups: Any, lr: float, what: str) -> None:
        super().__init__(groups, {"lr": lr})
        self.what, self.lr, self.count = what, lr, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.count += 1
        for group in self.param_groups:
            lr = self.lr if self.what == "constant rate" else group["lr"]
            lr /= self.count if self.what == "counts itself" else 1
            lr *= random.random() if self.what == "random" else 1
            for parameter in group["params"]:
                if self.what == "list":
                    self.state[parameter]["history"] = [{}]
                if self.what != "vectors stay" or parameter.ndim > 1:
                    parameter.sub_(parameter.grad, alpha=lr)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("constant rate", r"Step: a step with lr = 0 changed parameters \(weight, bias\)"),
        ("counts itself", r"Step: an optimizer that was saved halfway and restored goes on differently"),
        ("random", r"Step: two trainings with the same gradients differ"),
        ("list", r"Step: saving the state 'history' raised .*(\n.*)+hint: keep tensors and numbers in self.state"),
        ("vectors stay", r"Step: 6 steps left a parameter as it was"),
    ],
)
def test_a_broken_promise_of_an_optimizer_is_named(what: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_dense_optimizer(Step.Config(what=what))


class Moody(FirstDevice):
    class Config(PlannerSettings):
        """x"""

        refuses: bool = False

        def build(self, time_parts: Any = None, progress: Any = None) -> Planner:
            return Moody("refuses" if self.refuses else "right")

    def plan(self, problem: Any) -> Any:
        if self.what == "refuses":
            raise NoFeasiblePlan("I would rather not")
        return replace(super().plan(problem), notes=(str(random.SystemRandom().getrandbits(60)),))


def test_a_broken_promise_of_a_planner_is_named() -> None:
    with pytest.raises(ConfigError, match="Moody: plan returned two different plans for the same problem"):
        check_planner(Moody.Config())
    with pytest.raises(NoFeasiblePlan, match="Moody: I would rather not"):
        check_planner(Moody.Config(refuses=True))


def test_a_model_of_given_sizes_alone() -> None:
    class Narrow(Plain):
        class Config(ModelSettings):
            """x"""

            hidden: int = 3

            def build(self, dims: ModelDims) -> Model:
                if dims.features != 2:
                    raise ConfigError("needs two fields", "give it two")
                return Narrow(self, dims)

    with pytest.raises(ConfigError, match="needs two fields"):
        check_model(Narrow.Config())
    assert check_model(Narrow.Config(), ModelDims(dense=1, features=2, dim=4)).dims.features == 2
