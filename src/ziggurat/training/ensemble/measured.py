"""What checkpoints say of the validation rows, kept for all of them at once, to weigh or compare them.

One model is in memory at a time. The outputs of all candidates are: four bytes for each row, candidate and column.

Shape legend: B rows, M candidates, C columns, T labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ziggurat.core.memory import explained_thread_limit
from ziggurat.core.progress import Progress
from ziggurat.data.encoded.dataset import Dataset, SplitBlocks
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.objectives.outputs import Outputs
from ziggurat.objectives.task import column_slices
from ziggurat.training.ensemble.ensemble import Candidate, of_member
from ziggurat.training.ensemble.weights import Chosen, choose, equal
from ziggurat.training.malloc_tuning import keep_freed_memory
from ziggurat.training.open_recommender import open_recommender
from ziggurat.training.process_group import pick_device, process_group


@dataclass(frozen=True, slots=True)
class Measured:
    """The outputs of all candidates on the validation rows.

    Attributes:
        outputs: turns columns and labels into losses.
        columns_MBC: the columns of each candidate.
        labels_BT: the labels.
        weights_BT: what each row counts for each label.
    """

    outputs: Outputs
    columns_MBC: list[Tensor]
    labels_BT: Tensor
    weights_BT: Tensor

    @torch.no_grad()
    def chosen(self, number: int, equal_weights: bool) -> Chosen:
        """Returns the weights for the label of this number."""
        choice = equal if equal_weights else choose
        return choice(self.columns_of(number), partial(self._loss, number))

    @torch.no_grad()
    def shares(self, number: int, columns_BC: Tensor) -> Tensor:
        """Returns what each row adds to the mean loss of the label of this number, (B,), of outputs of it."""
        losses_B = self.outputs.losses_of(number, columns_BC, self.labels_BT[:, number]).double()
        weights_B = self.weights_BT[:, number]
        return losses_B * weights_B / weights_B.sum()

    def columns_of(self, number: int) -> list[Tensor]:
        """Returns the columns of each candidate for the label of this number."""
        at = column_slices(self.outputs.tasks)[number]
        return [columns_BC[:, at].contiguous() for columns_BC in self.columns_MBC]

    def _loss(self, number: int, columns_BC: Tensor) -> float:
        return float(self.shares(number, columns_BC).sum())


def measure(candidates: Sequence[Candidate], folder: Path, dataset: Dataset, progress: Progress) -> Measured:
    """Computes the outputs of each candidate on the validation rows."""
    keep_freed_memory()
    blocks = dataset.split("validation")
    device = pick_device(candidates[0].run.experiment.training.device)
    columns: list[Tensor] = []
    outputs: Outputs | None = None
    progress.start("outputs on validation", len(candidates) * blocks.rows, "rows")
    with explained_thread_limit(), process_group(device):
        for number, candidate in enumerate(candidates):
            experiment = candidate.run.experiment
            with (
                of_member(folder, candidate),
                open_recommender(
                    candidate.run,
                    experiment.layout(dataset.schema),
                    device,
                    prepared=dataset.folder,
                    checkpoint=candidate.step,
                ) as found,
                torch.no_grad(),
            ):
                found.recommender.eval()
                parts: list[Tensor] = []
                for batch, _ in _loader(blocks, dataset, experiment.evaluation.batch_size).epoch(Cursor()):
                    parts.append(found.recommender(batch.to(device))[0].cpu())
                columns.append(torch.cat(parts))
                outputs = found.recommender.outputs.cpu()
            progress.advance((number + 1) * blocks.rows)
    progress.finish()
    assert outputs is not None
    labels_BT, weights_BT = _labels(blocks, dataset, outputs)
    return Measured(outputs, columns, labels_BT, weights_BT)


def _labels(blocks: SplitBlocks, dataset: Dataset, outputs: Outputs) -> tuple[Tensor, Tensor]:
    """Returns the labels (B, T) of a split, and what each row counts for each label, as metrics count it."""
    labels: list[Tensor] = []
    weights: list[Tensor] = []
    kept_T = torch.tensor([task.known_rate for task in outputs.tasks], dtype=torch.float64)
    for batch, _ in _loader(blocks, dataset, 2**16).epoch(Cursor()):
        weights_BT = torch.ones_like(batch.labels_BT, dtype=torch.float64)
        if batch.weights_B is not None:
            weights_BT = weights_BT * batch.weights_B[:, None]
        if batch.counts_BT is not None:
            weights_BT = weights_BT * batch.counts_BT
        labels.append(batch.labels_BT)
        weights.append(torch.where(batch.labels_BT == 0, weights_BT / kept_T, weights_BT))
    return torch.cat(labels), torch.cat(weights)


def _loader(blocks: SplitBlocks, dataset: Dataset, batch_size: int) -> Loader:
    return Loader(blocks, dataset.schema, batch_size, shuffle=False)
