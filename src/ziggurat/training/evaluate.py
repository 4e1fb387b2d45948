"""Computes a recommender's metrics on a split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ziggurat.core.batch import Batch
from ziggurat.core.progress import Progress
from ziggurat.core.schema import Schema
from ziggurat.data.encoded.dataset import SplitBlocks
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.metrics.metric_set import MetricSet
from ziggurat.objectives.outputs import Outputs
from ziggurat.parallel.world import World
from ziggurat.training.ensemble.combined import CombinedRecommender
from ziggurat.training.recommender import Recommender


class StandIn(nn.Module):
    """What may be evaluated in the place of a recommender."""

    @property
    def outputs(self) -> Outputs:
        """Turns columns into predictions."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> tuple[Tensor, None]:
        """Returns columns_BC (float32), and None."""
        raise NotImplementedError


@torch.no_grad()
def evaluate_split(
    recommender: Recommender | CombinedRecommender | StandIn,
    blocks: SplitBlocks,
    schema: Schema,
    device: torch.device,
    batch_size: int,
    slices: Sequence[str] = (),
    progress: Progress | None = None,
) -> MetricSet:
    """Returns the metrics of the model, in evaluation mode, over a split in file order.

    All ranks call it. They take turns with the batches that a single process would make, and each gets the metrics of
    all rows.

    Args:
        recommender: the recommender of a run or of an ensemble, on ``device``.
        blocks: the rows of the split.
        schema: the schema of the dataset.
        device: the device of the model.
        batch_size: rows per forward pass.
        slices: categorical features to slice by.
        progress: shows the evaluation as the stage "evaluate", if given.
    """
    metrics = MetricSet(recommender.outputs.tasks, grouped=schema.has_group, slices=slices)
    world = World.current()
    loader = Loader(
        blocks, schema, batch_size, shuffle=False, rank=world.rank, world_size=world.size, assignment="round_robin"
    )
    at = Cursor()
    training = recommender.training
    recommender.eval()
    if progress is not None:
        progress.start(f"evaluate {blocks.folder.name}", blocks.rows, "rows")
    try:
        for batch, cursor in loader.epoch(Cursor()):
            on_device = batch.to(device)
            columns_BC, _ = recommender(on_device)
            if not loader.is_idle(at):
                metrics.update(
                    columns_BC.cpu().numpy(),
                    batch.labels_BT.numpy(),
                    None if batch.weights_B is None else batch.weights_B.numpy(),
                    None if batch.groups_B is None else batch.groups_B.numpy(),
                    {name: _ids(batch, name) for name in slices},
                    None if batch.counts_BT is None else batch.counts_BT.numpy(),
                )
            at = cursor
            if progress is not None:
                progress.advance(cursor.rows if cursor.epoch == 0 else blocks.rows)
    finally:
        recommender.train(training)
        if progress is not None:
            progress.finish()
    return _merged_over_ranks(metrics) if world.size > 1 else metrics


def _merged_over_ranks(metrics: MetricSet) -> MetricSet:
    """Returns the merged metrics of all ranks, equal to the bit to those of a single process."""
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, metrics.state())
    first, *others = (metrics.with_state(state) for state in states)
    for other in others:
        first.merge(other)
    return first


def _ids(batch: Batch, feature: str) -> torch.Tensor:
    assert batch.bags is not None
    return batch.bags[feature].values()
