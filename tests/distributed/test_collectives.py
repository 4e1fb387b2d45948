"""Collective operations of ranks: batch norms, agreement, tensor slices, invalid ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.distributed.ranks import run_ranks
from tests.distributed.test_sharding import CPU, RANKS, ROWS, SCHEMA, batch, part, plan_of
from ziggurat.core.errors import FeatureError, LostRank
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.layout import lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.parallel.agreement import StepAgreement, on_first_rank
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.norms import synchronise_batch_norms
from ziggurat.parallel.shared_memory import can_share, shared_slots
from ziggurat.parallel.tensor_slices import TensorSlice, fill, gather
from ziggurat.parallel.world import World

CUTS = {1: (0, 11), 2: (0, 4, 11), 3: (0, 4, 5, 11)}


def normed(rank: int, world_size: int) -> dict[str, Tensor]:
    """Returns outputs, input gradients and buffers of a batch norm over two batches of 11 rows, split over the
    ranks."""
    torch.manual_seed(0)
    rows_BC, weight_BC = torch.randn(2, 11, 5), torch.randn(11, 5)
    norm = nn.BatchNorm1d(5)
    nn.init.uniform_(norm.weight)
    model: nn.Module = nn.Sequential(norm)
    model = synchronise_batch_norms(model) if world_size > 1 else model
    mine = slice(*CUTS[world_size][rank : rank + 2])
    outputs: list[Tensor] = []
    grads: list[Tensor] = []
    for step in range(2):
        input_BC = rows_BC[step, mine].clone().requires_grad_()
        output_BC = model(input_BC)
        (output_BC.sin() * weight_BC[mine]).sum().backward()
        outputs.append(output_BC.detach())
        assert input_BC.grad is not None
        grads.append(input_BC.grad)
    model.eval()
    evaluated = model(rows_BC[0, mine]).detach()
    return {"outputs": torch.stack(outputs), "grads": torch.stack(grads), "evaluated": evaluated, **model.state_dict()}


@pytest.mark.parametrize("world_size", [2, 3])  # with three ranks one has a single row
def test_batch_norms_are_those_of_the_global_batch(world_size: int) -> None:
    alone = normed(0, 1)
    ranks = run_ranks(world_size, normed, world_size)
    for name, dimension in (("outputs", 1), ("grads", 1), ("evaluated", 0)):
        together = torch.cat([rank[name] for rank in ranks], dim=dimension)
        torch.testing.assert_close(together, alone[name], rtol=1e-5, atol=1e-6)
    for rank in ranks:
        for name in ("0.running_mean", "0.running_var"):
            torch.testing.assert_close(rank[name], alone[name], rtol=1e-5, atol=1e-6)
        assert rank["0.num_batches_tracked"] == 2


def agreed(rank: int, through_memory: bool) -> list[tuple[float, float, bool]]:
    slots = shared_slots(ParallelConfig(shared_memory=through_memory), World.current(), CPU)
    assert (slots is not None) == (through_memory and can_share(World.current(), CPU))
    steps = [
        StepAgreement(3 + rank, 0.5 * (rank + 1), rank == 1 and number == 1, slots).result() for number in range(2)
    ]
    return [(step.rows, step.weight, step.stopping) for step in steps]


@pytest.mark.parametrize("through_memory", [True, False])
def test_ranks_agree_on_rows_weights_and_stopping(through_memory: bool) -> None:
    assert run_ranks(2, agreed, through_memory) == [[(7.0, 1.5, False), (7.0, 1.5, True)]] * 2


def result_of_first_rank(rank: int, fails: bool) -> Any:
    def work() -> Path:
        assert rank == 0
        if fails:
            raise FileNotFoundError("log.csv")
        return Path("made")

    try:
        return on_first_rank(work)
    except (LostRank, FileNotFoundError) as error:
        return f"{type(error).__name__}: {error}"


def test_the_first_rank_works_and_the_others_get_its_result() -> None:
    assert run_ranks(2, result_of_first_rank, False) == [Path("made")] * 2


def test_a_failure_of_the_first_rank_is_raised_on_the_others() -> None:
    first, second = run_ranks(2, result_of_first_rank, True)
    assert first == "FileNotFoundError: log.csv"
    assert second.startswith("LostRank: rank 1: rank 0 failed with FileNotFoundError: log.csv")


WHOLE = torch.arange(24.0).view(6, 4)


def slices_of(rank: int) -> list[TensorSlice]:
    """Returns rows 0 to 2 and the right half of rows 3 to 5 on rank 0, their left half on rank 1, and replicated
    tensors."""
    both = TensorSlice.of_tensor("both", torch.tensor(7.0))
    if rank == 0:
        first, second = WHOLE[:3].clone(), WHOLE[3:, 2:].clone()
        return [TensorSlice("table", first, (6, 4), (0, 0)), TensorSlice("table", second, (6, 4), (3, 2)), both]
    empty = TensorSlice("table", torch.zeros(0, 4), (6, 4), (6, 0))
    return [
        TensorSlice("table", WHOLE[3:, :2].clone(), (6, 4), (3, 0)),
        empty,
        both,
        TensorSlice.of_tensor("mine", WHOLE[0].clone()),
    ]


def ordered_slices_of(rank: int) -> list[TensorSlice]:
    """Returns rows 0, 5 and 1 on rank 0, and the right half of rows 4, 2 and 3 on rank 1."""
    rows = torch.tensor([0, 5, 1] if rank == 0 else [4, 2, 3], dtype=torch.int32)
    columns = slice(0, 4) if rank == 0 else slice(2, 4)
    return [TensorSlice("table", WHOLE[rows.long(), columns].clone(), (6, 4), (3 * rank, columns.start), rows)]


def ordered_and_filled(rank: int) -> tuple[Any, list[str], bool]:
    return _gathered_and_filled(ordered_slices_of(rank))


def gathered_and_filled(rank: int) -> tuple[Any, list[str], bool]:
    return _gathered_and_filled(slices_of(rank))


def _gathered_and_filled(tensor_slices: list[TensorSlice]) -> tuple[Any, list[str], bool]:
    wholes = gather(tensor_slices)
    before = [tensor_slice.tensor.clone() for tensor_slice in tensor_slices]
    for tensor_slice in tensor_slices:
        tensor_slice.tensor.zero_()
    fill(tensor_slices, {"table": WHOLE, "both": torch.tensor(7.0), "mine": WHOLE[0]})
    same = all(torch.equal(tensor_slice.tensor, old) for tensor_slice, old in zip(tensor_slices, before, strict=True))
    return wholes, [tensor_slice.key for tensor_slice in tensor_slices], same


def test_slices_are_gathered_and_filled() -> None:
    (wholes, keys, same), (others, _, same_there) = run_ranks(2, gathered_and_filled)
    assert others is None
    assert wholes.keys() == {"table", "both", "mine"}
    assert torch.equal(wholes["table"], WHOLE)
    assert torch.equal(wholes["mine"], WHOLE[0])
    assert float(wholes["both"]) == 7
    assert keys == ["table[0:3,0:4]", "table[3:6,2:4]", "both"]
    assert same
    assert same_there


def test_slices_with_rows_in_another_order() -> None:
    (wholes, keys, same), (_, keys_there, same_there) = run_ranks(2, ordered_and_filled)
    assert torch.equal(wholes["table"][[0, 1, 5]], WHOLE[[0, 1, 5]])
    assert torch.equal(wholes["table"][2:5, 2:], WHOLE[2:5, 2:])
    assert (keys, keys_there) == (["table[0:3,0:4]"], ["table[3:6,2:4]"])
    assert same
    assert same_there


def looked_up(rank: int, fast_rows: int | None) -> str:
    """Returns a rank's error for a batch in which rank 1 has an unknown item."""
    layout = lay_out(EmbeddingsConfig.model_validate({"dim": 8, "optimizer": {"name": "sgd"}}), SCHEMA, {})
    plan = plan_of(2, 2, user=("table_wise", (0,)), item=("row_wise", (0, 1)), tags=("table_wise", (1,)))
    plan = plan.placed("item", "row_wise", (0, 1), fast_rows)
    lookup = EmbeddingLookup(layout, plan, CPU, seed=0, row_ranks=RANKS)
    mine = part(batch(0), rank, 2)
    if rank == 1:
        assert mine.bags is not None
        mine.bags["item"].values()[2] = ROWS["item"]
    try:
        lookup.start(mine)
    except FeatureError as error:
        return str(error)
    return "fine"


@pytest.mark.parametrize("fast_rows", [None, 5])
def test_an_id_outside_its_table_is_named_by_the_rank_that_has_it(fast_rows: int | None) -> None:
    """Without the check a split table would map the id to another row. For ordered rows the error names the
    id, not a position."""
    first, second = run_ranks(2, looked_up, fast_rows)
    assert first == "fine"
    assert "feature 'item': id 37 is outside [0, 37), the rows of table 'item', on rank 1" in second


def test_a_single_rank_needs_no_exchange() -> None:
    assert not dist.is_initialized()
    tensor_slice = TensorSlice.of_tensor("all", WHOLE)
    assert tensor_slice.is_whole
    assert tensor_slice.key == "all"
