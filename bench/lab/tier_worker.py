"""Looks up histories on one rank of the lab, by several plans: `python -m bench.lab.tier_worker SPEC OUT`.

The first rank writes the measurements of all ranks for each round to OUT. SPEC is a JSON file: ``{"cases": [...],
"warmups": 1, "rounds": 3, "steps": 2, "fewer_rounds": {}}``; the last has the names of slow ways, with how many rounds
they are measured in, without a warm-up; a case has the histories, the sizes, and plans by name. The name ``torchrec``
is TorchRec's EmbeddingCollection, split by rows. All ways get the same ids, and the same encoder after the look-up.
Each round has an order of the ways of its own, the same on all ranks, and every other one times the step before the
exchange alone.

Shape legend: B examples of this rank, S positions, D dim, L ids.
"""

from __future__ import annotations

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import _apply_optimizer_in_backward as fuse  # pyright: ignore[reportPrivateUsage]
from torch.profiler import ProfilerActivity, profile
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from bench.lab.histories import LONGEST, Histories
from bench.lab.workload import CPU, sent_bytes
from ziggurat.core.batch import Batch
from ziggurat.core.plan import Plan
from ziggurat.core.row_order import frequency_ranks
from ziggurat.core.schema import Schema
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.layout import Positions, lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.interactions.sequences.attention_pooling import AttentionPooling
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.world import World
from ziggurat.training.process_group import process_group

OPTIMIZER = {"name": "rowwise_adagrad", "lr": 0.01}
TORCHREC = "torchrec"
ORDER = 40
"""The seed of the orders of rounds."""
ENCODER = AttentionPooling.Config(hidden=16)
"""The encoder of the histories; small, because the ranks share cores."""


class Way(ABC):
    """One way to look histories up."""

    @abstractmethod
    def rows(self, history: KeyedJaggedTensor) -> Tensor:
        """Returns rows_BSD."""

    @abstractmethod
    def finish(self) -> None:
        """Completes the updates after the backward pass."""

    @abstractmethod
    def held_bytes(self) -> int:
        """Returns the bytes of weights, optimizer states and the order of rows on this rank."""

    def traffic(self) -> dict[str, float]:
        """Returns this rank's bytes so far by what they were sent for; empty if they are not counted."""
        return {}


class ByPlan(Way):
    """ziggurat's look-up by a plan."""

    def __init__(self, case: Mapping[str, Any], histories: Histories, plan: Plan) -> None:
        schema = Schema(
            sequences=("history",), tables={"history": "item"}, rows={"item": histories.rows}, labels=("y",)
        )
        config = EmbeddingsConfig.model_validate({"dim": case["dim"], "optimizer": OPTIMIZER})
        layout = lay_out(config, schema, {"history": Positions(ENCODER, LONGEST)})
        ranks = {"item": frequency_ranks(histories.counts, histories.rows)}
        self._size = case["batch"]
        world = World.current().size
        self._lookup = EmbeddingLookup(layout, plan, CPU, 0, ParallelConfig(), self._size * world, ranks)

    def rows(self, history: KeyedJaggedTensor) -> Tensor:
        batch = Batch(torch.zeros(self._size, 0), None, history, torch.zeros(self._size, 1))
        rows = self._lookup.finish(self._lookup.start(batch)).by_feature
        return rows["history"]

    def finish(self) -> None:
        self._lookup.exchange()

    def held_bytes(self) -> int:
        slices = [*self._lookup.tensor_slices(), *self._lookup.state_slices()]
        return sum(each.tensor.nbytes for each in slices) + self._lookup.order_bytes

    def traffic(self) -> dict[str, float]:
        return {} if self._lookup.tiered is None else self._lookup.tiered.traffic.totals()


class ByTorchRec(Way):
    """TorchRec's EmbeddingCollection, split by rows over all ranks; each look-up is sent."""

    def __init__(self, case: Mapping[str, Any], histories: Histories) -> None:
        config = EmbeddingConfig(
            name="item", embedding_dim=case["dim"], num_embeddings=histories.rows, feature_names=["history"]
        )
        tables = EmbeddingCollection(tables=[config], device=torch.device("meta"))
        fuse(RowWiseAdagrad, [cast("nn.Embedding", tables.embeddings["item"]).weight], {"lr": 0.01, "eps": 1e-8})
        sharder, world = cast("Any", EmbeddingCollectionSharder()), World.current()
        plan = construct_module_sharding_plan(
            tables,
            {"item": row_wise()},
            sharder,
            local_size=world.local_size,
            world_size=world.size,
            device_type="cpu",
        )
        assert dist.group.WORLD is not None
        env = ShardingEnv.from_process_group(dist.group.WORLD)
        self._parallel = DistributedModelParallel(
            tables, device=CPU, env=env, plan=ShardingPlan({"": plan}), sharders=[sharder]
        )

    def rows(self, history: KeyedJaggedTensor) -> Tensor:
        return self._parallel(history).wait()["history"].to_padded_dense(LONGEST)

    def finish(self) -> None:
        return

    def held_bytes(self) -> int:
        tensors = [
            *self._parallel.state_dict().values(),
            *self._parallel.fused_optimizer.state_dict()["state"].values(),
        ]
        return sum(map(_local_bytes, tensors))


def _local_bytes(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_local_bytes(each) for each in cast("dict[str, Any]", value).values())
    if hasattr(value, "local_shards"):
        return sum(shard.tensor.nbytes for shard in value.local_shards())
    return value.nbytes if isinstance(value, Tensor) else 0


class Contestant:
    """A way with its encoder; all ranks take its steps together."""

    def __init__(self, case: Mapping[str, Any], plan: Mapping[str, Any] | None) -> None:
        self._case, self._histories = case, Histories(case["histories"])
        self.way: Way = (
            ByTorchRec(case, self._histories)
            if plan is None
            else ByPlan(case, self._histories, Plan.from_json(dict(plan)))
        )
        self._draw = np.random.default_rng([dist.get_rank(), 7])
        self._encoder = ENCODER.build(LONGEST, case["dim"])

    def measured(self, steps: int, *, step_first: bool) -> dict[str, Any]:
        """Returns seconds and bytes of a step's look-up and exchange alone, and the seconds of a step with the
        encoder.

        Args:
            steps: how many steps each is the mean of.
            step_first: whether the steps with the encoder come first.
        """
        if step_first:
            step = {"step": self._seconds(steps, self._encoded)}
            return {**self._communication(steps), **step}
        communication = self._communication(steps)
        return {**communication, "step": self._seconds(steps, self._encoded)}

    def _communication(self, steps: int) -> dict[str, Any]:
        before, counted = sent_bytes(), self.way.traffic()
        alone = self._seconds(steps, self._exchanged)
        sent = (sent_bytes() - before) / steps
        own = {name: (value - counted.get(name, 0.0)) / steps for name, value in self.way.traffic().items()}
        return {"communication": alone, "inter": float(sent[0]), "intra": float(sent[1]), "traffic": _summed(own)}

    def peak_bytes(self) -> int:
        """Returns what this rank holds at most in a step without the encoder: weights, states, the order of rows, and
        whatever torch allocates."""
        history = self._history()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            self._exchanged(history)
        results: Any = cast("Any", found.profiler).kineto_results
        changes = sorted((each.start_ns(), each.nbytes()) for each in results.events() if each.name() == "[memory]")
        buffers = np.cumsum([0, *(size for _, size in changes)]).max()
        return self.way.held_bytes() + int(buffers)

    def _seconds(self, steps: int, work: Callable[[KeyedJaggedTensor], None]) -> float:
        batches = [self._history() for _ in range(steps)]
        dist.barrier()
        started = time.perf_counter()
        for history in batches:
            work(history)
        dist.barrier()
        return (time.perf_counter() - started) / steps

    def _exchanged(self, history: KeyedJaggedTensor) -> None:
        self.way.rows(history).sum().backward()
        self.way.finish()

    def _encoded(self, history: KeyedJaggedTensor) -> None:
        rows_BSD = self.way.rows(history)
        mask_BS = torch.arange(LONGEST) < history.lengths().unsqueeze(1)
        self._encoder(rows_BSD, mask_BS).square().mean().backward()
        self.way.finish()

    def _history(self) -> KeyedJaggedTensor:
        ids, lengths = self._histories.draw(self._case["batch"], self._draw)
        return KeyedJaggedTensor(
            keys=["history"], values=torch.from_numpy(ids), lengths=torch.from_numpy(lengths).int()
        )


def _summed(own: Mapping[str, float]) -> dict[str, float]:
    """Returns each figure summed over all ranks, which all have the same ones."""
    names = sorted(own)
    values = torch.tensor([own[name] for name in names], dtype=torch.float64)
    if names:
        dist.all_reduce(values)
    return dict(zip(names, values.tolist(), strict=True))


def main(arguments: Sequence[str]) -> None:
    spec, out = json.loads(Path(arguments[0]).read_text(encoding="utf-8")), Path(arguments[1])
    found: dict[str, dict[str, Any]] = {}
    with process_group(CPU):
        for case in spec["cases"]:
            contestants = {name: Contestant(case, plan) for name, plan in case["plans"].items()}
            rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
            names = list(contestants)
            for turn in range(spec["warmups"] + spec["rounds"]):
                for name in in_turn(names, turn):
                    fewer = spec["fewer_rounds"].get(name)
                    if fewer is not None and not 0 <= turn - spec["warmups"] < fewer:
                        continue
                    values = contestants[name].measured(spec["steps"], step_first=turn % 2 == 1)
                    if turn >= spec["warmups"]:
                        rounds[name].append(values)
                    if dist.get_rank() == 0:
                        seconds = 1000 * values["communication"]
                        print(f"round {turn + 1}: {case['name']} {name} {seconds:,.0f} ms a step", flush=True)
            peaks = {name: _largest(each.peak_bytes()) for name, each in contestants.items()}
            found[case["name"]] = {"rounds": rounds, "peaks": peaks}
        if dist.get_rank() == 0:
            out.write_text(json.dumps(found), encoding="utf-8")


def in_turn(names: list[str], turn: int) -> list[str]:
    """Returns the order of the ways in a round, drawn anew for each, so that no way always follows the same other."""
    return [names[place] for place in np.random.default_rng([ORDER, turn]).permutation(len(names))]


def _largest(value: int) -> float:
    largest = torch.tensor([float(value)], dtype=torch.float64)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return float(largest)


if __name__ == "__main__":
    main(sys.argv[1:])
