"""Shampoo shared by real ranks: the same training as by one, a part of the state each, and errors that reach all."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.ranks import run_ranks
from ziggurat.core.errors import DivergedError, ZigguratError
from ziggurat.optim.shampoo.shampoo import Shampoo

SETTINGS: dict[str, Any] = {
    "lr": 0.02, "precondition_frequency": 3, "max_preconditioner_dim": 17, "weight_decay": 0.01, "momentum": 0.5,
}  # fmt: skip


def network(width: int = 33) -> nn.Module:
    """Odd sizes, so that blocks begin anywhere."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(19, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))


def gradients(model: nn.Module, step: int) -> None:
    """The same on every rank: of a batch that depends on the step alone."""
    generator = torch.Generator().manual_seed(step)
    inputs_BF = torch.randn(32, 19, generator=generator)
    model(inputs_BF).sub(inputs_BF[:, :1] * inputs_BF[:, 1:2]).square().mean().backward()


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        gradients(model, step)
        optimizer.step()


def held_bytes(optimizer: Shampoo) -> int:
    """Of states of blocks on this rank."""
    return sum(
        each.to_local().nbytes if isinstance(each, torch.distributed.tensor.DTensor) else each.nbytes
        for state in optimizer.state.values()
        for key, each in state.items()
        if key != "step"
    )


def weights(model: nn.Module) -> list[Tensor]:
    return [
        each.full_tensor() if isinstance(each, torch.distributed.tensor.DTensor) else each.detach().clone()
        for each in model.parameters()
    ]


def replicated(rank: int, settings: dict[str, Any], steps: int = 10) -> dict[str, Any]:
    del rank
    model = network()
    optimizer = Shampoo(model.named_parameters(), **{**SETTINGS, **settings})
    trained(model, optimizer, 0, steps)
    return {"weights": weights(model), "bytes": held_bytes(optimizer)}


FORMS = [{}, {"form": "roots"}, {"root": "qr", "late": 1}, {"form": "roots", "root": "newton"}]


@pytest.mark.parametrize("settings", FORMS, ids=str)
def test_ranks_take_the_steps_of_one_bit_for_bit(settings: dict[str, Any]) -> None:
    """Each with less of the state the more there are."""
    (alone,) = run_ranks(1, replicated, settings)
    held = [alone["bytes"]]
    for size in (2, 4):
        found = run_ranks(size, replicated, settings)
        for each in found:
            assert all(torch.equal(mine, one) for mine, one in zip(each["weights"], alone["weights"], strict=True))
        assert sum(each["bytes"] for each in found) == alone["bytes"]
        held.append(max(each["bytes"] for each in found))
    assert held[1] < 0.65 * held[0]
    assert held[2] < 0.65 * held[1]


def of_small_blocks(rank: int) -> list[Tensor]:
    """Of 10 × 11, where products depend on where they lie, of 13 × 11, and of three dimensions."""
    del rank
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape)) for shape in [(20, 33)] * 3 + [(39, 11)] * 2 + [(9, 14, 5)]]
    optimizer = Shampoo(weights, lr=0.01, precondition_frequency=2, max_preconditioner_dim=16)
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        for each in weights:
            each.grad = torch.randn(each.shape, generator=generator)
        optimizer.step()
    return [each.detach() for each in weights]


@pytest.mark.parametrize("size", [2, 4])
def test_small_blocks_take_the_steps_of_one_rank(size: int) -> None:
    (alone,) = run_ranks(1, of_small_blocks)
    for found in run_ranks(size, of_small_blocks):
        assert all(torch.equal(mine, one) for mine, one in zip(found, alone, strict=True))


def of_types(rank: int) -> list[Tensor]:
    """Layers in fp32, fp64 and bf16 beside each other."""
    del rank
    model = network()
    assert isinstance(model, nn.Sequential)
    model[2].double()
    model[4].bfloat16()
    optimizer = Shampoo(model.named_parameters(), **SETTINGS)
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        for each in model.parameters():
            each.grad = torch.randn(each.shape, generator=generator).to(each.dtype)
        optimizer.step()
    return weights(model)


def test_parameters_of_several_types_take_the_steps_of_one_rank() -> None:
    (alone,) = run_ranks(1, of_types)
    assert {each.dtype for each in alone} == {torch.float32, torch.float64, torch.bfloat16}
    for found in run_ranks(2, of_types):
        assert all(torch.equal(mine, one) for mine, one in zip(found, alone, strict=True))


def in_groups(rank: int) -> dict[str, Any]:
    return replicated(rank, {"group_size": 2})


def test_two_groups_of_two_do_the_same_work_each() -> None:
    (alone,) = run_ranks(1, replicated, {})
    found = run_ranks(4, in_groups)
    for each in found:
        assert all(torch.equal(mine, one) for mine, one in zip(each["weights"], alone["weights"], strict=True))
    assert [each["bytes"] for each in found[:2]] == [each["bytes"] for each in found[2:]]


@pytest.mark.parametrize(("precision", "bits"), [("bf16", 8), ("fp16", 11)])
def test_fewer_bits_round_updates_and_leave_ranks_equal(precision: str, bits: int) -> None:
    """The first step, by the gradient itself times 1e-9 and 1e9: fp16 would hold neither without a scale."""
    settings: dict[str, Any] = {"graft": "sgd", "betas": (0.0, 0.99), "weight_decay": 0.0, "lr": 1.0}
    for scale in (1e-9, 1e9):
        (alone,) = run_ranks(1, one_step, settings, scale)
        first, second = run_ranks(2, one_step, {**settings, "communicate": precision}, scale)
        for one, mine, other in zip(alone, first, second, strict=True):
            assert torch.equal(mine, other)
            assert not torch.equal(mine, one)
            torch.testing.assert_close(mine, one, rtol=2.0**-bits, atol=2.0**-24 * one.abs().max().item())


def one_step(rank: int, settings: dict[str, Any], scale: float) -> list[Tensor]:
    """Where a step leads from zero, whose gradients are those of the network times ``scale``."""
    del rank
    model = network()
    gradients(model, 0)
    optimizer = Shampoo(model.named_parameters(), **{**SETTINGS, **settings})
    with torch.no_grad():
        for each in model.parameters():
            assert each.grad is not None
            each.grad.mul_(scale)
            each.zero_()
    optimizer.step()
    return weights(model)


def sharded(rank: int, kind: str, size: int) -> list[Tensor]:
    del rank
    model = network()
    if kind == "ddp":
        wrapped = DistributedDataParallel(model)
        trained(wrapped, Shampoo(model.named_parameters(), **SETTINGS), 0, 8)
        return weights(model)
    if kind == "fsdp":
        mesh = init_device_mesh("cpu", (size,))
    else:
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    trained(model, Shampoo(model.named_parameters(), **SETTINGS), 0, 8)
    return weights(model)


@pytest.mark.parametrize(("kind", "size"), [("ddp", 2), ("fsdp", 2), ("fsdp", 4), ("hsdp", 4)])
def test_under_each_way_to_spread_a_model(kind: str, size: int) -> None:
    """Equal gradients on 2 or 4 ranks have themselves as their mean, bit for bit."""
    (alone,) = run_ranks(1, replicated_weights)
    for found in run_ranks(size, sharded, kind, size):
        assert all(torch.equal(mine, one) for mine, one in zip(found, alone, strict=True))


def replicated_weights(rank: int) -> list[Tensor]:
    del rank
    model = network()
    trained(model, Shampoo(model.named_parameters(), **SETTINGS), 0, 8)
    return weights(model)


def saved(rank: int, folder: Path) -> None:
    del rank
    model = network()
    optimizer = Shampoo(model.named_parameters(), **SETTINGS)
    trained(model, optimizer, 0, 5)
    dcp.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=folder)


def resumed(rank: int, folder: Path) -> list[Tensor]:
    del rank
    model = network()
    optimizer = Shampoo(model.named_parameters(), **SETTINGS)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    trained(model, optimizer, 5, 8)
    return weights(model)


def test_a_state_of_two_ranks_goes_on_on_one_and_on_four(tmp_path: Path) -> None:
    """By torch's own distributed checkpoints; ziggurat's are in test_training.py."""
    run_ranks(2, saved, tmp_path)
    (expected,) = run_ranks(1, replicated_weights)
    for size in (1, 4):
        for found in run_ranks(size, resumed, tmp_path):
            assert all(torch.equal(mine, one) for mine, one in zip(found, expected, strict=True))


def failing(rank: int, how: str, is_spread: bool = False) -> str:
    model = network()
    if is_spread:
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = Shampoo(model.named_parameters(), **SETTINGS)
    trained(model, optimizer, 0, 2)
    optimizer.zero_grad()
    gradients(model, 2)
    first = next(iter(model.parameters()))
    assert first.grad is not None
    if how == "missing" and rank == 1:
        first.grad = None
    if how == "nan" and rank == 1:
        for each in model.parameters():
            assert each.grad is not None
            each.grad.fill_(torch.nan)
    if how == "changed" and rank == 1:
        optimizer.param_groups[0]["precondition_frequency"] = 9
    if how == "rate" and rank == 1:
        optimizer.param_groups[0]["lr"] = 0.03
    if how == "no rate" and rank == 1:
        optimizer.param_groups[0]["lr"] = "0.03x"
    if how == "shape" and rank == 1:
        first.data = torch.ones(2, 2)
    if how == "bug" and rank == 0:
        optimizer._own_updates = None  # type: ignore[assignment, method-assign]

    def closure() -> float:
        if how == "closure" and rank == 1:
            raise TypeError("no loss")
        return 0.0

    try:
        optimizer.step(closure)
    except (ZigguratError, TypeError) as error:
        dist.barrier()  # all are still there, and none waits for another
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_a_gradient_that_one_rank_lacks_is_named() -> None:
    for told in run_ranks(2, failing, "missing"):
        assert told.startswith("LostRank: shampoo: parameter '0.weight' has a gradient on rank 0 and none on rank 1")


def test_an_error_on_one_rank_ends_all_with_its_name() -> None:
    first, second = run_ranks(2, failing, "nan")
    assert second.startswith("DivergedError: parameter '")
    assert first.startswith("LostRank: shampoo, rank 1: DivergedError: parameter '")
    for is_spread in (False, True):
        first, second = run_ranks(2, failing, "changed", is_spread)
        assert second.startswith("ConfigError: shampoo: precondition_frequency was changed to 9")
        assert first.startswith("LostRank: shampoo, rank 1: ConfigError: shampoo: precondition_frequency was changed")
        first, second = run_ranks(2, failing, "closure", is_spread)
        assert second == "TypeError: no loss"
        assert first.startswith("LostRank: shampoo, rank 1: TypeError: no loss")
        first, second = run_ranks(2, failing, "no rate", is_spread)
        assert second.startswith("TypeError: '<='")
        assert first.startswith("LostRank: shampoo, rank 1: TypeError: '<='")
        for told in run_ranks(2, failing, "rate", is_spread):
            assert told.startswith("LostRank: shampoo: the learning rate of group 0 is 0.02 on rank 0 and 0.03 on rank")
    first, second = run_ranks(2, failing, "shape")
    assert second.startswith("ConfigError: shampoo: parameter '0.weight' is (2, 2) now and was (33, 19)")
    assert first.startswith("LostRank: shampoo, rank 1: ConfigError: shampoo: parameter '0.weight' is (2, 2) now")
    first, second = run_ranks(2, failing, "bug")
    assert first.startswith("TypeError")
    assert second.startswith("LostRank: shampoo, rank 0: TypeError")


def skipping(rank: int) -> list[Tensor]:
    """Weights of a training that leaves out a batch whose gradient is no number in one place."""
    del rank
    model = network()
    optimizer = Shampoo(model.named_parameters(), **SETTINGS)
    for step in range(8):
        optimizer.zero_grad()
        gradients(model, step)
        last = list(model.parameters())[-1]
        assert last.grad is not None
        if step == 4:
            last.grad.view(-1)[0] = torch.nan
        try:
            optimizer.step()
        except DivergedError:
            assert step == 4
    return weights(model)


def test_a_batch_that_fails_on_all_ranks_can_be_left_out() -> None:
    """Every rank looks at all gradients, whoever owns the block: the states of none have changed."""
    (alone,) = run_ranks(1, skipping)
    for found in run_ranks(2, skipping):
        assert all(torch.equal(mine, other) for mine, other in zip(found, alone, strict=True))


def vanishing(rank: int, precision: str) -> bool:
    """Whether updates that fade through the smallest numbers leave weights finite."""
    del rank
    model = network()
    optimizer = Shampoo(model.named_parameters(), graft="sgd", betas=(0.0, 0.99), start=10**9, communicate=precision)
    for scale in (1e-30, 1e-39, 1e-44, 0.0):
        for each in model.parameters():
            each.grad = torch.full_like(each, scale)
        optimizer.step()
    return all(bool(each.isfinite().all()) for each in model.parameters())


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_updates_that_fade_stay_numbers(precision: str) -> None:
    assert run_ranks(2, vanishing, precision) == [True, True]


def saved_whole(rank: int) -> bool:
    """By torch itself, and copied."""
    del rank
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    optimizer = Shampoo(model.named_parameters(), max_preconditioner_dim=8, precondition_frequency=2)
    for _ in range(3):
        for each in model.parameters():
            each.grad = torch.ones_like(each)
        optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    copied = copy.deepcopy(optimizer.state_dict())
    for state, *others in zip(
        *(each["state"].values() for each in (optimizer.state_dict(), loaded, copied)), strict=True
    ):
        for name, value in state.items():
            for other in others:
                pair = [each.to_local() if isinstance(each, DTensor) else each for each in (value, other[name])]
                if not torch.equal(*pair):
                    return False
    return True


def test_a_state_of_ranks_is_saved_and_copied_by_torch() -> None:
    assert run_ranks(2, saved_whole) == [True, True]


def loaded_elsewhere(rank: int) -> str:
    """A state that rank 0 alone saved, by torch, taken by both."""
    model = network()
    optimizer = Shampoo(model.named_parameters(), **SETTINGS)
    trained(model, optimizer, 0, 3)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    shared: list[Any] = [file.getvalue()]
    dist.broadcast_object_list(shared, 0)
    saved = torch.load(io.BytesIO(shared[0]), weights_only=False)
    before = copy.deepcopy(optimizer.state_dict())
    try:
        optimizer.load_state_dict(saved)
    except ZigguratError as error:
        same = str(before["state"]) == str(optimizer.state_dict()["state"])
        return f"{same}: {error}"
    return "taken"


def test_a_state_that_another_rank_saved_is_refused_and_nothing_of_it_taken() -> None:
    first, second = run_ranks(2, loaded_elsewhere)
    assert first == "taken"
    assert second.startswith("True: shampoo: the state of parameter '0.weight' has no ")


def by_itself(rank: int) -> dict[str, Any]:
    """Two models on two pairs of ranks each."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    torch.manual_seed(rank // 2)
    model = nn.Linear(19, 19)
    optimizer = Shampoo(model.named_parameters(), process_group=pairs[rank // 2], **SETTINGS)
    for step in range(5):
        for each in model.parameters():
            generator = torch.Generator().manual_seed(10 * (rank // 2) + step)
            each.grad = torch.randn(each.shape, generator=generator)
        optimizer.step()
    return {"weights": weights(model), "bytes": held_bytes(optimizer)}


def test_ranks_that_train_another_model_have_a_group_of_their_own() -> None:
    found = run_ranks(4, by_itself)
    for first, second in (found[:2], found[2:]):
        assert all(torch.equal(mine, other) for mine, other in zip(first["weights"], second["weights"], strict=True))
        assert first["bytes"] != second["bytes"]
    assert not torch.equal(found[0]["weights"][0], found[2]["weights"][0])


def differing(rank: int, what: str) -> str:
    lr = 0.1 if what == "lr" and rank else 0.2
    model = network(33 + (rank if what == "shape" else 0))
    if what == "type" and rank:
        model.bfloat16()
    parameters = list(model.named_parameters())
    if what == "order" and rank:
        parameters.reverse()
    group = dist.new_group([0]) if what == "member" else None
    try:
        Shampoo(parameters, group, lr=lr)
    except ZigguratError as error:
        return str(error)
    return ""


def test_ranks_that_differ_are_told_before_the_first_step() -> None:
    for told in run_ranks(2, differing, "lr"):
        assert told.startswith("shampoo: the settings of group 0 is name='shampoo' lr=0.2")
    for told in run_ranks(2, differing, "shape"):
        assert told.startswith("shampoo: the shape of '0.bias' is (33,) on rank 0 and (34,) on rank 1")
    for told in run_ranks(2, differing, "type"):
        assert told.startswith("shampoo: the type of '0.bias' is torch.float32 on rank 0 and torch.bfloat16 on rank 1")
    for told in run_ranks(2, differing, "order"):
        assert told.startswith("shampoo: parameter number 0 is '0.weight' on rank 0 and")
    first, second = run_ranks(2, differing, "member")
    assert first == ""
    assert second.startswith("shampoo: rank 1 is not of the process_group")


def flattened(rank: int) -> str:
    del rank
    whole = FullyShardedDataParallel(network(), device_id=torch.device("cpu"))
    try:
        Shampoo(whole.named_parameters())
    except ZigguratError as error:
        return str(error)
    return ""


def test_parameters_that_were_made_one_are_refused() -> None:
    """Each rank has another part of them, of the same shape."""
    for told in run_ranks(2, flattened):
        assert "is several that FullyShardedDataParallel made one" in told
        assert "use torch.distributed.fsdp.fully_shard" in told


def undivided(rank: int) -> str:
    del rank
    try:
        Shampoo(network().named_parameters(), group_size=3)
    except ZigguratError as error:
        return str(error)
    return ""


def test_a_group_size_that_does_not_divide_the_ranks_is_refused() -> None:
    assert all("group_size: 3 does not divide the 2 ranks" in told for told in run_ranks(2, undivided))
