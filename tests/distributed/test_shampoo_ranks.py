"""Shampoo distributed over real ranks trains like one rank, with a part of the state on each."""

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
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.ranks import run_ranks
from tests.distributed.shampoo_cases import SETTINGS, gradients, network, trained, weights
from ziggurat.core.errors import ZigguratError
from ziggurat.optim.shampoo.shampoo import Shampoo


def held_bytes(optimizer: Shampoo) -> int:
    """Returns the bytes of block states on this rank."""
    return sum(
        each.to_local().nbytes if isinstance(each, torch.distributed.tensor.DTensor) else each.nbytes
        for state in optimizer.state.values()
        for key, each in state.items()
        if key != "step"
    )


def replicated(rank: int, settings: dict[str, Any], steps: int = 10) -> dict[str, Any]:
    del rank
    model = network()
    optimizer = Shampoo(model.named_parameters(), **{**SETTINGS, **settings})
    trained(model, optimizer, 0, steps)
    return {"weights": weights(model), "bytes": held_bytes(optimizer)}


FORMS = [{}, {"form": "roots"}, {"root": "qr", "late": 1}, {"form": "roots", "root": "newton"}]


@pytest.mark.parametrize("settings", FORMS, ids=str)
def test_ranks_take_the_steps_of_one_bit_for_bit(settings: dict[str, Any]) -> None:
    """The more ranks, the less state each holds."""
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
    """Blocks of 10 × 11, whose products depend on their alignment, of 13 × 11, and of three dimensions."""
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
    """Layers in fp32, fp64 and bf16 in one model."""
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


def test_two_groups_of_two_ranks_do_the_same_work() -> None:
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
    """Returns the weights after one step from zero, with the network's gradients times ``scale``."""
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
def test_every_kind_of_data_parallelism(kind: str, size: int) -> None:
    """The mean of equal gradients on 2 or 4 ranks equals them bit for bit."""
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


def test_a_state_of_two_ranks_resumes_on_one_and_four(tmp_path: Path) -> None:
    """Uses torch's distributed checkpoints; ziggurat's are tested in test_training.py."""
    run_ranks(2, saved, tmp_path)
    (expected,) = run_ranks(1, replicated_weights)
    for size in (1, 4):
        for found in run_ranks(size, resumed, tmp_path):
            assert all(torch.equal(mine, one) for mine, one in zip(found, expected, strict=True))


def vanishing(rank: int, precision: str) -> bool:
    """Returns whether weights stay finite while updates decay through the smallest numbers."""
    del rank
    model = network()
    optimizer = Shampoo(model.named_parameters(), graft="sgd", betas=(0.0, 0.99), start=10**9, communicate=precision)
    for scale in (1e-30, 1e-39, 1e-44, 0.0):
        for each in model.parameters():
            each.grad = torch.full_like(each, scale)
        optimizer.step()
    return all(bool(each.isfinite().all()) for each in model.parameters())


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_vanishing_updates_leave_weights_finite(precision: str) -> None:
    assert run_ranks(2, vanishing, precision) == [True, True]


def saved_whole(rank: int) -> bool:
    """Saves and copies the state by torch."""
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
    """Loads on both ranks a state that only rank 0 saved, by torch."""
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


def test_a_state_of_another_rank_is_refused_without_a_change() -> None:
    first, second = run_ranks(2, loaded_elsewhere)
    assert first == "taken"
    assert second.startswith("True: shampoo: the state of parameter '0.weight' has no ")


def by_itself(rank: int) -> dict[str, Any]:
    """Trains two models, each on a pair of ranks."""
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


def test_ranks_that_train_another_model_use_a_separate_group() -> None:
    found = run_ranks(4, by_itself)
    for first, second in (found[:2], found[2:]):
        assert all(torch.equal(mine, other) for mine, other in zip(first["weights"], second["weights"], strict=True))
        assert first["bytes"] != second["bytes"]
    assert not torch.equal(found[0]["weights"][0], found[2]["weights"][0])
