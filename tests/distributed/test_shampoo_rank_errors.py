"""An error on one of Shampoo's ranks, or a difference between ranks, fails all of them and names the rank."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from tests.distributed.ranks import run_ranks
from tests.distributed.shampoo_cases import SETTINGS, gradients, network, trained, weights
from ziggurat.core.errors import DivergedError, ZigguratError
from ziggurat.optim.shampoo.shampoo import Shampoo


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
        dist.barrier()  # all ranks are alive, and none waits for another
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_a_gradient_that_one_rank_lacks_is_named() -> None:
    for told in run_ranks(2, failing, "missing"):
        assert told.startswith("LostRank: shampoo: parameter '0.weight' has a gradient on rank 0 and none on rank 1")


def test_an_error_on_one_rank_fails_all_and_names_it() -> None:
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
    """Returns the weights of a training that skips a batch whose gradient is nan in one place."""
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


def test_a_batch_that_fails_on_all_ranks_can_be_skipped() -> None:
    """Every rank checks all gradients, whichever rank owns the block, so no state has changed."""
    (alone,) = run_ranks(1, skipping)
    for found in run_ranks(2, skipping):
        assert all(torch.equal(mine, other) for mine, other in zip(found, alone, strict=True))


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


def test_differing_ranks_are_reported_before_the_first_step() -> None:
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
    assert second.startswith("shampoo: rank 1 is not in the process_group")


def flattened(rank: int) -> str:
    del rank
    whole = FullyShardedDataParallel(network(), device_id=torch.device("cpu"))
    try:
        Shampoo(whole.named_parameters())
    except ZigguratError as error:
        dist.barrier()  # the other rank may still be connecting to this one
        return str(error)
    return ""


def test_flattened_parameters_are_refused() -> None:
    """Each rank holds another part of them, of the same shape."""
    for told in run_ranks(2, flattened):
        assert "was flattened by FullyShardedDataParallel from several parameters" in told
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
