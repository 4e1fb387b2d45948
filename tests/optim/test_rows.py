"""Row optimizers that TorchRec fuses into backward, compared with their formulas on the CPU with one rank."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torchrec.optim as classes
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from row_reference import ReferenceTable
from torch import Tensor
from torch.distributed.optim import _apply_optimizer_in_backward as apply_in_backward
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ziggurat.core.config import Config, parse_config
from ziggurat.core.errors import ConfigError, EnvironmentMismatch
from ziggurat.optim.rows import (
    RowAdagrad,
    RowAdam,
    RowOptimizerConfig,
    RowSGD,
    RowwiseAdagrad,
    fused_optimizer,
    parse_row_optimizer,
)

CPU = [
    RowwiseAdagrad(lr=0.1),
    RowwiseAdagrad(lr=0.1, eps=0.5),
    RowAdagrad(lr=0.1),
    RowAdagrad(lr=0.1, eps=0.5),
    RowSGD(lr=0.1),
]
BOTH_POOLINGS = pytest.mark.parametrize("mean", [False, True], ids=["sum", "mean"])
EACH_CPU_OPTIMIZER = pytest.mark.parametrize("config", CPU, ids=lambda c: f"{c.name}-{getattr(c, 'eps', '')}")
ROWS, BATCH = 12, 8
UNTOUCHED = range(ROWS - 3, ROWS)
"""Rows that no bag of these tests contains."""

Bags = list[list[int]]


@pytest.fixture(scope="module", autouse=True)
def _world_of_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if dist.is_initialized():
        yield
        return
    store = dist.FileStore(str(Path(tmp_path_factory.mktemp("group")) / "store"), 1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_WORLD_SIZE", "1")
        yield
    dist.destroy_process_group()


@dataclass
class Table:
    """The settings of one table in a test."""

    config: RowOptimizerConfig
    features: int = 1
    mean: bool = False
    dim: int = 8


def shard(collection: EmbeddingBagCollection) -> DistributedModelParallel:
    """Wraps the tables so that each is whole on rank 0, the only rank."""
    sharder: Any = EmbeddingBagCollectionSharder()
    plan = construct_module_sharding_plan(
        collection,
        per_param_sharding={config.name: table_wise(rank=0) for config in collection.embedding_bag_configs()},
        sharder=sharder,
        local_size=1,
        world_size=1,
        device_type="cpu",
    )
    return DistributedModelParallel(
        collection,
        device=torch.device("cpu"),
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        plan=ShardingPlan(plan={"": plan}),
        sharders=[sharder],
    )


class Fused:
    """Tables under DistributedModelParallel; their initial weights depend only on the table's number."""

    def __init__(self, tables: list[Table]) -> None:
        names = [f"t{number}" for number in range(len(tables))]
        self.features = [[f"{name}_{f}" for f in range(t.features)] for name, t in zip(names, tables, strict=True)]
        collection = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=name,
                    embedding_dim=table.dim,
                    num_embeddings=ROWS,
                    feature_names=features,
                    pooling=PoolingType.MEAN if table.mean else PoolingType.SUM,
                )
                for name, table, features in zip(names, tables, self.features, strict=True)
            ],
            device=torch.device("meta"),
        )
        for name, table in zip(names, tables, strict=True):
            kind, settings = fused_optimizer(table.config.model_dump())
            apply_in_backward(kind, [collection.embedding_bags[name].weight], settings)
        self.parallel = shard(collection)
        for number, table in enumerate(tables):
            self.weight(number).copy_(start_weights(number, table.dim))

    def weight(self, number: int) -> Tensor:
        return self.parallel.state_dict()[f"embedding_bags.t{number}.weight"].local_shards()[0].tensor

    def step(self, bags: dict[str, Bags], grads: dict[str, Tensor]) -> dict[str, Tensor]:
        """Runs forward and backward, which updates the rows; returns the pooled vectors before the update."""
        pooled = self.parallel(kjt(bags)).to_dict()
        torch.stack([(pooled[name] * grad).sum() for name, grad in grads.items()]).sum().backward()
        return {name: vectors.detach() for name, vectors in pooled.items()}

    def scale_learning_rates(self, multiplier: float, base: float) -> None:
        for group in self.parallel.fused_optimizer.param_groups:
            group["lr"] = base * multiplier
        self.parallel.fused_optimizer.step()


def start_weights(number: int, dim: int) -> Tensor:
    return torch.randn(ROWS, dim, generator=torch.Generator().manual_seed(number))


def kjt(bags: dict[str, Bags]) -> KeyedJaggedTensor:
    values = [row for feature in bags.values() for bag in feature for row in bag]
    lengths = [len(bag) for feature in bags.values() for bag in feature]
    return KeyedJaggedTensor(
        keys=list(bags), values=torch.tensor(values, dtype=torch.int64), lengths=torch.tensor(lengths)
    )


def random_bags(generator: torch.Generator) -> Bags:
    """Draws bags of 0 to 4 rows, with repeated rows within and across bags."""
    sizes = torch.randint(0, 5, (BATCH,), generator=generator).tolist()
    return [torch.randint(0, ROWS - len(UNTOUCHED), (size,), generator=generator).tolist() for size in sizes]


def run(tables: list[Table], steps: int, multipliers: list[float] | None = None) -> tuple[Fused, list[ReferenceTable]]:
    """Trains fused and reference tables on the same bags and gradients, comparing every forward pass."""
    fused = Fused(tables)
    references = [
        ReferenceTable(start_weights(number, table.dim).double(), table.config, table.mean)
        for number, table in enumerate(tables)
    ]
    generator = torch.Generator().manual_seed(99)
    for step in range(steps):
        if multipliers is not None:
            fused.scale_learning_rates(multipliers[step], tables[0].config.lr)
        bags = {name: random_bags(generator) for features in fused.features for name in features}
        grads = {
            name: torch.randn(BATCH, table.dim, generator=generator)
            for features, table in zip(fused.features, tables, strict=True)
            for name in features
        }
        pooled = fused.step(bags, grads)
        for reference, features in zip(references, fused.features, strict=True):
            if multipliers is not None:
                reference.lr_multiplier = multipliers[step]
            for name in features:
                torch.testing.assert_close(pooled[name].double(), reference.pooled(bags[name]), rtol=1e-4, atol=1e-4)
            together = [bag for name in features for bag in bags[name]]
            reference.update(together, torch.cat([grads[name] for name in features]).double())
    return fused, references


def check(fused: Fused, references: list[ReferenceTable]) -> None:
    """Compares float32 kernels with float64 formulas; the tolerance of 1e-4 is for sums that nearly cancel."""
    for number, reference in enumerate(references):
        torch.testing.assert_close(fused.weight(number).double(), reference.weight_RD, rtol=1e-4, atol=1e-4)


@EACH_CPU_OPTIMIZER
@BOTH_POOLINGS
def test_equals_summing_a_rows_gradients_and_updating_once(config: RowOptimizerConfig, mean: bool) -> None:
    check(*run([Table(config, mean=mean)], steps=6))


@EACH_CPU_OPTIMIZER
@BOTH_POOLINGS
def test_a_row_that_two_features_share_is_updated_once(config: RowOptimizerConfig, mean: bool) -> None:
    check(*run([Table(config, features=2, mean=mean)], steps=6))


@pytest.mark.parametrize("dim", [4, 12, 64, 132])
@pytest.mark.parametrize("features", [1, 2])
def test_rows_of_every_width_are_updated_completely(dim: int, features: int) -> None:
    """FBGEMM compiles a separate kernel for each width."""
    check(*run([Table(config, features=features, dim=dim) for config in (CPU[0], CPU[2], CPU[4])], steps=2))


@EACH_CPU_OPTIMIZER
def test_untouched_rows_keep_their_bits(config: RowOptimizerConfig) -> None:
    fused, _ = run([Table(config, features=2)], steps=4)
    rows = list(UNTOUCHED)
    assert torch.equal(fused.weight(0)[rows], start_weights(0, 8)[rows])


@EACH_CPU_OPTIMIZER
def test_it_repeats_bit_for_bit(config: RowOptimizerConfig) -> None:
    first, _ = run([Table(config, features=2)], steps=4)
    second, _ = run([Table(config, features=2)], steps=4)
    assert torch.equal(first.weight(0), second.weight(0))


@EACH_CPU_OPTIMIZER
def test_learning_rates_follow_the_schedule(config: RowOptimizerConfig) -> None:
    check(*run([Table(config)], steps=4, multipliers=[0.5, 1.0, 0.0, 0.25]))


def test_each_table_has_its_own_optimizer_dim_and_pooling() -> None:
    tables = [
        Table(RowwiseAdagrad(lr=0.1), dim=8),
        Table(RowwiseAdagrad(lr=0.3), dim=8),
        Table(RowAdagrad(lr=0.05), features=2, dim=4),
        Table(RowSGD(lr=0.2), mean=True, dim=16),
        Table(RowwiseAdagrad(lr=0.1, eps=1.0), dim=8),
    ]
    check(*run(tables, steps=5))


def test_the_mean_of_four_dims_moves_like_a_scalar_under_adagrad() -> None:
    """Logistic regression relies on this: the mean of a row moves like a scalar weight under Adagrad with 4·eps."""
    config = RowwiseAdagrad(lr=0.1, eps=1e-3)
    fused = Fused([Table(config, dim=4)])
    weight, total = start_weights(0, 4)[2].mean().item(), 0.0
    for gradient in (0.7, -0.3, 1.1):
        grads_BD = torch.zeros(BATCH, 4)
        grads_BD[0] = gradient / 4
        fused.step({"t0_0": [[2], *([[]] * (BATCH - 1))]}, {"t0_0": grads_BD})
        total += gradient**2
        weight -= config.lr * gradient / (total**0.5 + 4 * config.eps)
        assert fused.weight(0)[2].mean().item() == pytest.approx(weight, rel=1e-5)


def test_adam_on_the_cpu_is_refused() -> None:
    with pytest.raises(EnvironmentMismatch, match=r"table 'user': FBGEMM has no Adam on the CPU.*\n.*rowwise_adagrad"):
        fused_optimizer(RowAdam().model_dump(), "cpu", "user")


def test_weight_decay_ignored_on_the_cpu_is_refused() -> None:
    settings = RowwiseAdagrad(weight_decay=0.01).model_dump()
    with pytest.raises(EnvironmentMismatch, match=r"ignores weight_decay \(0.01\) on the CPU\n.*embeddings.l2"):
        fused_optimizer(settings, "cpu", "user")


def test_fbgemm_still_ignores_row_wise_weight_decay_on_the_cpu() -> None:
    """The reason for the refusal. If this test fails, FBGEMM supports it, and the refusal can be removed."""
    kind, settings = fused_optimizer(RowwiseAdagrad(weight_decay=0.5).model_dump(), "cuda")
    assert kind is classes.RowWiseAdagrad
    weights: list[Tensor] = []
    for options in (settings, {"lr": settings["lr"], "eps": settings["eps"]}):
        collection = EmbeddingBagCollection(
            tables=[EmbeddingBagConfig(name="t0", embedding_dim=8, num_embeddings=ROWS, feature_names=["t0_0"])],
            device=torch.device("meta"),
        )
        apply_in_backward(kind, [collection.embedding_bags["t0"].weight], dict(options))
        weights.append(_one_step(collection))
    assert torch.equal(*weights)


def _one_step(collection: EmbeddingBagCollection) -> Tensor:
    parallel = shard(collection)
    weight = parallel.state_dict()["embedding_bags.t0.weight"].local_shards()[0].tensor
    weight.copy_(start_weights(0, 8))
    parallel(kjt({"t0_0": [[1, 2], [2]]})).values().sum().backward()
    return weight


def test_settings_reach_cuda_kernels_under_fbgemms_names() -> None:
    adam = RowAdam(lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.01)
    assert fused_optimizer(adam.model_dump(), "cuda") == (
        classes.Adam,
        {"lr": 0.1, "beta1": 0.8, "beta2": 0.9, "eps": 1e-6, "weight_decay": 0.01},
    )
    adagrad = RowwiseAdagrad(lr=0.1, eps=1e-6, weight_decay=0.01)
    assert fused_optimizer(adagrad.model_dump(), "cuda") == (
        classes.RowWiseAdagrad,
        {"lr": 0.1, "eps": 1e-6, "weight_decay": 0.01, "weight_decay_mode": WeightDecayMode.L2},
    )


@pytest.mark.parametrize("config", [*CPU, RowAdam(betas=(0.5, 0.6), weight_decay=0.1)], ids=lambda c: c.name)
def test_a_config_survives_the_table_spec(config: RowOptimizerConfig) -> None:
    assert parse_row_optimizer(config.model_dump()) == config
    assert parse_row_optimizer(config.model_dump(mode="json")) == config


class Holder(Config):
    optimizer: RowOptimizerConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "row_wise_adagrad"}, "did you mean 'rowwise_adagrad'"),
        ({"name": "sgd", "eps": 1e-8}, "optimizer.eps: unknown key; allowed: lr, name"),
        ({"name": "adagrad", "weight_decay": 0.1}, "optimizer.weight_decay: unknown key"),
        ({"name": "adam", "lr": -1}, "optimizer.lr"),
        ({"name": "adam", "l2": 0.1}, "l2 needs `rows: all`"),
        ({"name": "adam", "rows": "some"}, "optimizer.rows"),
    ],
)
def test_a_bad_config_is_explained(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(Holder, {"optimizer": values})


def test_configs_load_without_the_engine() -> None:
    """``ziggurat schema`` and ``init`` must not spend time on importing TorchRec."""
    code = "import sys, ziggurat.optim.rows; print('torchrec' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
