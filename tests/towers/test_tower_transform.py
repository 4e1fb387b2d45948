"""The tower transform computes what the flat exchange computes, rows and weights; its traps are caught here.

Processes of this machine act as hosts: each has the ranks and the LOCAL_WORLD_SIZE that a launcher would give it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.distributed.ranks import run_ranks
from ziggurat.core.batch import Batch
from ziggurat.core.plan import Placement, Plan
from ziggurat.core.schema import Schema
from ziggurat.core.topology import Topology
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.layout import lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.embeddings.tower_transform import exchanges
from ziggurat.embeddings.tower_transform.transform import TowerTransform
from ziggurat.embeddings.wire import Wire
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.shared_memory import hosts_can_share
from ziggurat.parallel.tensor_slices import gather
from ziggurat.parallel.world import World
from ziggurat.towers.modules.dlrm import DLRMTower
from ziggurat.towers.traffic import flat_traffic, tower_traffic
from ziggurat.training.process_group import process_group

NAMES = tuple("abcdefgh")
ROWS = {name: 11 + 6 * number for number, name in enumerate(NAMES)}
SCHEMA = Schema(
    categorical=NAMES[:6],
    bags=NAMES[6:],
    sequences=(),
    tables={name: name for name in NAMES},
    rows=ROWS,
    labels=("y",),
)
DIM, STEPS, BATCH = 8, 50, 48
OPTIMIZERS: list[dict[str, Any]] = [{"name": "sgd", "lr": 0.1}, {"name": "rowwise_adagrad", "lr": 0.05}]
CPU = torch.device("cpu")
LARGER = [(8, 4), (8, 2), (6, 3)]


def batch(step: int, rank: int, world_size: int) -> Batch:
    """Returns a rank's part of the step's batch; every row has one id of six features, and two of the other two."""
    draw = torch.Generator().manual_seed(step)
    ids = {name: torch.randint(0, ROWS[name], (BATCH, 1 + (name in "gh")), generator=draw) for name in NAMES}
    start, stop = BATCH * rank // world_size, BATCH * (rank + 1) // world_size
    values = [each[start:stop] for each in ids.values()]
    lengths = torch.cat([torch.full((stop - start,), each.shape[1]) for each in values])
    bags = KeyedJaggedTensor(keys=[*NAMES], values=torch.cat([each.flatten() for each in values]), lengths=lengths)
    return Batch(torch.zeros(stop - start, 0), bags, None, torch.zeros(stop - start, 1))


def towers_of(hosts: int) -> list[tuple[str, ...]]:
    """Returns towers that are no runs of the schema's features: the output must be put into its order."""
    return [NAMES[host::hosts] for host in range(hosts)]


def plan_of(world_size: int, local_size: int) -> Plan:
    """Returns a plan with the tables of a tower on its host: one of each split by rows if it has several, and another
    by columns if it has more."""
    placements: dict[str, Placement] = {}
    for host, tower in enumerate(towers_of(world_size // local_size)):
        ranks = tuple(range(host * local_size, (host + 1) * local_size))
        split = [name for name in tower if name != "g"][-1]
        for number, name in enumerate(tower):
            if name == split and len(tower) > 1:
                placements[name] = Placement("table_row_wise", ranks)
            elif number == 1 and local_size > 1:
                placements[name] = Placement("column_wise", ranks[1::-1])
            else:
                placements[name] = Placement("table_wise", (ranks[number % local_size],))
    return Plan(world_size, placements, local_size)


def trained(
    rank: int,
    plan: Plan,
    optimizer: dict[str, Any],
    *,
    by_towers: bool,
    steps: int = STEPS,
    wire: Wire | None = None,
    memory: ParallelConfig | None = None,
) -> dict[str, Any]:
    """Returns the fields of this rank's rows in the first step, and all weights and states after the last."""
    os.environ["LOCAL_WORLD_SIZE"] = str(plan.local_size)
    config = EmbeddingsConfig.model_validate({"dim": DIM, "init_std": 0.1, "optimizer": optimizer})
    layout = lay_out(config, SCHEMA, {"g": "mean", "h": "sum"})
    world = World.current()
    towers = TowerTransform(layout, towers_of(world.hosts), world, CPU, wire, memory) if by_towers else None
    lookup = EmbeddingLookup(layout, plan, CPU, 3, ParallelConfig(), towers=towers)
    target_FD = torch.linspace(-1, 1, len(NAMES) * DIM).view(len(NAMES), DIM)
    fields: Tensor | None = None
    for step in range(steps):
        emb_BFD = lookup(batch(step, rank, plan.world_size))
        fields = emb_BFD.detach().clone() if fields is None else fields
        loss = (emb_BFD * emb_BFD.detach().sin() + emb_BFD * target_FD).sum() / BATCH
        (loss * plan.world_size).backward()  # exchanges divide gradients by the number of ranks
        lookup.exchange()
    return {"fields": fields, "whole": (gather(lookup.tensor_slices()), gather(lookup.state_slices()))}


def trained_all(rank: int, world_size: int, local_size: int) -> list[dict[str, Any]]:
    plan = plan_of(world_size, local_size)
    return [trained(rank, plan, optimizer, by_towers=True, memory=ParallelConfig()) for optimizer in OPTIMIZERS]


def flat(optimizer: dict[str, Any], steps: int = STEPS) -> dict[str, Any]:
    with process_group(CPU):
        return trained(0, Plan.single_device(NAMES), optimizer, by_towers=False, steps=steps)


def weights(found: dict[str, Any]) -> dict[str, Tensor]:
    tables, states = found["whole"]
    return {**tables, **{name: each for name, each in states.items() if each.ndim}}


@pytest.mark.parametrize(("world_size", "local_size"), [(4, 2), *LARGER], ids=lambda each: str(each))
def test_rows_and_weights_equal_the_flat_exchange(world_size: int, local_size: int) -> None:
    found = run_ranks(world_size, trained_all, world_size, local_size)
    for number, optimizer in enumerate(OPTIMIZERS):
        expected = flat(optimizer)
        fields = torch.cat([ranks[number]["fields"] for ranks in found])
        torch.testing.assert_close(fields, expected["fields"], rtol=0, atol=0)
        ours, theirs = weights(found[0][number]), weights(expected)
        assert ours.keys() == theirs.keys()
        for name, each in theirs.items():
            torch.testing.assert_close(ours[name], each, rtol=0, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize(("size", "local"), [(4, 2), (8, 4), (8, 2), (6, 3), (16, 8), (12, 4), (3, 1), (3, 3)])
def test_blocks_are_ordered_by_the_peers_of_a_rank(size: int, local: int) -> None:
    """The paper's key, (g mod T, g div T), gives a rank rows of examples that are not those of its peers."""
    blocks = torch.arange(size).repeat_interleave(2).view(-1, 1)
    world = World(0, size, local)
    ordered = exchanges.peer_order(blocks, world)
    right = sorted(range(size), key=lambda rank: (rank % local, rank // local))
    assert ordered[:, ::2, 0].flatten().tolist() == right
    for number in range(local):
        assert set(ordered[number].flatten().tolist()) == {rank for rank in range(size) if rank % local == number}
    assert torch.equal(exchanges.rank_order(ordered, world), blocks)
    hosts = size // local
    printed = sorted(range(size), key=lambda rank: (rank % hosts, rank // hosts))
    assert (printed == right) == (hosts == local or 1 in (hosts, local))


def without_permute(blocks: Tensor, world: World) -> Tensor:
    """Takes the blocks as they come, those of rank 0 first."""
    return blocks.reshape(world.local_size, len(blocks) // world.local_size, blocks.shape[1])


def undivided(times: str, gradients: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns an exchange's gradients without its divisor."""
    return lambda self, grad: gradients(self, grad) * getattr(self.ranks.world, times)


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "peer order": (exchanges, "peer_order", without_permute),
    "peer divisor": (
        exchanges.PeerExchange,
        "gradients",
        undivided("hosts", exchanges.PeerExchange.gradients),
    ),
    "host divisor": (exchanges.WholeRows, "gradients", undivided("local_size", exchanges.WholeRows.gradients)),
    "sum divisor": (exchanges.SummedRows, "gradients", undivided("local_size", exchanges.SummedRows.gradients)),
}


def trained_with_faults(rank: int) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, (owner, attribute, broken) in FAULTS.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, attribute, broken)
            found[name] = trained(rank, plan_of(4, 2), OPTIMIZERS[0], by_towers=True, steps=3)
    wire = Wire(ParallelConfig(forward_precision="bf16", backward_precision="fp16"), BATCH)
    found["fewer bits"] = trained(rank, plan_of(4, 2), OPTIMIZERS[0], by_towers=True, steps=3, wire=wire)
    return found


def test_each_fault_of_the_exchanges_shows() -> None:
    """A wrong order of the peers shows in the rows, a missing divisor in the weights; rounding is no fault."""
    expected = flat(OPTIMIZERS[0], steps=3)
    found = run_ranks(4, trained_with_faults)
    for name in FAULTS:
        fields = torch.cat([ranks[name]["fields"] for ranks in found])
        assert torch.equal(fields, expected["fields"]) == (name != "peer order"), name
        ours, theirs = weights(found[0][name]), weights(expected)
        assert max(float((ours[key] - each).abs().max()) for key, each in theirs.items()) > 1e-4, name
    rounded = [ranks["fewer bits"] for ranks in found]
    fields = torch.cat([each["fields"] for each in rounded])
    assert not torch.equal(fields, expected["fields"])
    torch.testing.assert_close(fields, expected["fields"], rtol=2**-7, atol=2**-7 * 0.1)
    for key, each in weights(expected).items():
        torch.testing.assert_close(weights(rounded[0])[key], each, rtol=0, atol=1e-3)


def trained_either_way(rank: int, size: int, local: int) -> list[list[dict[str, Any]]]:
    """Returns what ranks of a host send through sockets and through shared memory, at full and reduced precision."""
    reduced = ParallelConfig(forward_precision="bf16", backward_precision="fp16")
    return [
        [
            trained(rank, plan_of(size, local), OPTIMIZERS[0], by_towers=True, steps=5, wire=wire, memory=memory)
            for memory in (ParallelConfig(shared_memory=False), ParallelConfig())
        ]
        for wire in (None, Wire(reduced, BATCH))
    ]


@pytest.mark.skipif(not hosts_can_share(World(0, 4, 2), CPU), reason="ranks share memory on Linux and x86 alone")
def test_shared_memory_of_a_host_gives_the_bits_of_sockets() -> None:
    for rank, precisions in enumerate(run_ranks(4, trained_either_way, 4, 2)):
        for sockets, memory in precisions:
            assert torch.equal(sockets["fields"], memory["fields"])
            for name, each in weights(sockets).items() if rank == 0 else ():  # rank 0 gathers them
                assert torch.equal(weights(memory)[name], each), name


def left_alone(rank: int) -> str:
    """Returns the error of rank 2 when rank 3, on its host, has ended."""
    ranks = exchanges.HostRanks(World(rank, 4, 2), memory=ParallelConfig(timeout_s=60))
    if rank != 2:
        return ""
    with pytest.raises(dist.DistNetworkError) as caught:
        ranks.exchange_within(torch.zeros(4), [2, 2])
    return str(caught.value)


@pytest.mark.skipif(not hosts_can_share(World(0, 4, 2), CPU), reason="ranks share memory on Linux and x86 alone")
def test_a_rank_of_the_host_that_has_ended_is_named_by_its_number_in_the_world() -> None:
    assert run_ranks(4, left_alone)[2].endswith("rank 3 has ended")


def fields_by_tower(rank: int) -> Tensor:
    """Returns the first step's fields as they leave the towers, without the layout's order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TowerTransform, "in_layout", lambda self, fields: fields)
        return trained(rank, plan_of(4, 2), OPTIMIZERS[0], by_towers=True, steps=1)["fields"]


def test_an_order_of_towers_is_not_that_of_features() -> None:
    """A layer that tells fields apart needs the layout's order, which a permutation restores."""
    expected = flat(OPTIMIZERS[0], steps=1)["fields"]
    fields = torch.cat(run_ranks(4, fields_by_tower))
    by_tower = [NAMES.index(name) for tower in towers_of(2) for name in tower]
    assert by_tower != sorted(by_tower)
    assert torch.equal(fields, expected[:, by_tower])
    layer = torch.nn.Linear(len(NAMES) * DIM, 1)
    assert not torch.allclose(layer(fields.flatten(1)), layer(expected.flatten(1)), atol=1e-3)


def gradients_of_towers(rank: int) -> list[tuple[float, float]]:
    """Returns (gradient, finite difference of the global loss) for some weights of this host's tower."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    config = EmbeddingsConfig.model_validate({"dim": DIM, "init_std": 0.5, "optimizer": {"name": "sgd", "lr": 1e-12}})
    layout = lay_out(config, SCHEMA, {"g": "mean", "h": "sum"})
    world = World.current()
    towers = TowerTransform(layout, towers_of(2), world, CPU)
    lookup = EmbeddingLookup(layout, plan_of(4, 2), CPU, 3, ParallelConfig(), towers=towers)
    torch.manual_seed(5)
    modules = [DLRMTower.Config(flat=1, each=1, width=3).build(4, DIM) for _ in range(2)]
    towers.call([modules[number] for number in towers.own], [5, 5], 3, autocast=False)

    def global_loss(*, backward: bool = False) -> float:
        out_BOD = lookup(batch(0, rank, 4))
        loss = (out_BOD.square() / 2 + out_BOD * torch.linspace(-1, 1, 30).view(10, 3)).sum() / len(out_BOD)
        if backward:
            loss.backward()
        total = loss.detach().double().reshape(1)
        dist.all_reduce(total)
        return float(total) / 4

    global_loss(backward=True)
    towers.average_gradients()
    found: list[tuple[float, float]] = []
    for host in range(2):  # all ranks compute each loss, whichever host's weight is moved
        own = list(modules[host].parameters())
        for weight in own:
            gradient = 0.0 if weight.grad is None else float(weight.grad.flatten()[1])
            losses: list[float] = []
            for step in (0.05, -0.05):
                with torch.no_grad():
                    weight.flatten()[1] += step
                    losses.append(global_loss())
                    weight.flatten()[1] -= step
            if world.rank // 2 == host:
                found.append((gradient, (losses[0] - losses[1]) / 0.1))
    return found


def test_gradients_of_towers_are_the_finite_differences_of_the_global_loss() -> None:
    for found in run_ranks(4, gradients_of_towers):
        assert len(found) == 4
        for gradient, difference in found:
            assert abs(gradient) > 1e-3
            assert gradient == pytest.approx(difference, rel=2e-3, abs=2e-4)


SPLIT = ("a", "b")
"""A table of each of two towers."""


def sent_by_a_step(rank: int, split: tuple[str, ...]) -> tuple[int, int]:
    """Returns the bytes that this rank sends to other ranks in a step, between hosts and within its own; of some tables
    the ranks of a host hold the rows together."""
    counted = {True: 0, False: 0}
    send = exchanges.HostRanks._send  # pyright: ignore[reportPrivateUsage]

    def counts(ranks: exchanges.HostRanks, sent: Tensor, sizes: list[int], *others: Any) -> Any:
        within = others[-1] is ranks.within
        own = ranks.local if within else ranks.host
        counted[within] += 4 * (sum(sizes) - sizes[own])
        return send(ranks, sent, sizes, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchanges.HostRanks, "_send", counts)
        whole = {
            name: Placement("table_row_wise", (2 * host, 2 * host + 1))
            if name in split
            else Placement("table_wise", (2 * host + number % 2,))
            for host, tower in enumerate(towers_of(2))
            for number, name in enumerate(tower)
        }
        trained(rank, Plan(4, whole, 2), OPTIMIZERS[0], by_towers=True, steps=1)
    return counted[False], counted[True]


def test_the_bytes_of_tables_that_are_split_by_rows_are_those_that_are_sent() -> None:
    found = run_ranks(4, sent_by_a_step, SPLIT)
    topology = Topology(2, 2, "cpu", "cpu", 10**9, 1e9, 1e9, 1e8)
    floats = DIM * len(NAMES)
    expected = tower_traffic(floats, floats, BATCH, topology, split=DIM * len(SPLIT))
    assert sum(between for between, _ in found) == expected.between
    assert sum(within for _, within in found) == expected.within


def test_the_bytes_of_a_plan_are_those_that_are_sent() -> None:
    found = run_ranks(4, sent_by_a_step, ())
    topology = Topology(2, 2, "cpu", "cpu", 10**9, 1e9, 1e9, 1e8)
    floats = DIM * len(NAMES)
    expected = tower_traffic(floats, floats, BATCH, topology)
    assert sum(between for between, _ in found) == expected.between
    assert sum(within for _, within in found) == expected.within
    assert tower_traffic(floats, floats, BATCH, topology, value_bytes=4).between == expected.between / 2
    flat_bytes = flat_traffic(floats, BATCH, topology)
    assert flat_bytes.between == expected.between
    assert flat_bytes.within == expected.within / 2
    assert flat_bytes.seconds(topology) < expected.seconds(topology)
    assert tower_traffic(floats, floats // 8, BATCH, topology).seconds(topology) < flat_bytes.seconds(topology)
