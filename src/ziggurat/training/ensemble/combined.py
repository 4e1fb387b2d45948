"""The recommenders of an ensemble as one: each gets the same batch, and their outputs are averaged.

What is averaged are the columns of :class:`~ziggurat.objectives.outputs.Outputs`: logits of labels that are rates, logs
of predictions under the losses ``poisson``, ``tweedie`` and ``log1p``, predictions under the other losses, cumulative
logits of ordinal labels. All of a member's corrections, such as that for negatives that were dropped, are in them.

Shape legend: B rows, M members, C columns, T labels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ziggurat.core.batch import Batch
from ziggurat.core.errors import ConfigError
from ziggurat.core.schema import Schema
from ziggurat.objectives.outputs import Outputs
from ziggurat.objectives.task import Task
from ziggurat.parallel.tensor_slices import TensorSlice
from ziggurat.training.ensemble.ensemble import Ensemble, of_member
from ziggurat.training.open_recommender import open_recommender
from ziggurat.training.recommender import Recommender
from ziggurat.training.run_folder.run import Run


class CombinedRecommender(nn.Module):
    """Computes the weighted mean of the columns of several recommenders.

    Args:
        members: the recommenders, on one device.
        weights: for each, label -> its weight.

    Attributes:
        members: the recommenders.
        weights_MC: the weight of each column of each.
    """

    def __init__(self, members: Sequence[Recommender], weights: Sequence[Mapping[str, float]]) -> None:
        super().__init__()
        assert len(members) == len(weights) >= 1
        self.parts = nn.ModuleList(members)
        self.members = list(members)
        tasks = members[0].outputs.tasks
        self.weights_MC = [_of_columns(tasks, each) for each in weights]

    @property
    def outputs(self) -> Outputs:
        """Turns columns into predictions; the same for all members."""
        return self.members[0].outputs

    def forward(self, batch: Batch) -> tuple[Tensor, None]:
        """Returns columns_BC (float32), summed in float64 in the order of the members, and None."""
        return self._mean(member(batch)[0] for member in self.members), None

    def looked_up(self, batch: Batch) -> Callable[[], Tensor]:
        """Looks up the rows of a batch in the tables of all members; the function that it returns predicts them."""
        parts = [member.looked_up(batch) for member in self.members]
        return lambda: self._mean(predict() for predict in parts)

    @property
    def is_shareable(self) -> bool:
        """Whether several threads may predict at once (:attr:`Recommender.is_shareable`)."""
        return all(member.is_shareable for member in self.members)

    def _mean(self, columns: Iterable[Tensor]) -> Tensor:
        sum_BC: Tensor | None = None
        for columns_BC, weights_C in zip(columns, self.weights_MC, strict=True):
            weighted_BC = columns_BC.double() * torch.tensor(weights_C, dtype=torch.float64, device=columns_BC.device)
            sum_BC = weighted_BC if sum_BC is None else sum_BC + weighted_BC
        assert sum_BC is not None
        return sum_BC.float()

    def tensor_slices(self) -> list[TensorSlice]:
        """Returns all live tensors of all members."""
        return [each for member in self.members for each in member.tensor_slices()]


@dataclass(frozen=True, slots=True)
class OpenModel:
    """The model of a run or of an ensemble, on its devices.

    Attributes:
        recommender: the model.
        note: a note for the user about its placement or the restored weights, if any.
    """

    recommender: Recommender | CombinedRecommender
    note: str | None


@contextlib.contextmanager
def open_model(
    opened: Run | Ensemble,
    schema: Schema,
    device: torch.device,
    *,
    prepared: Path | None,
    checkpoint: str = "best",
) -> Generator[OpenModel]:
    """Opens the model of a run or of an ensemble on the ranks of the current process group, which all call it.

    Args:
        opened: the run or the ensemble.
        schema: the schema of the data.
        device: this rank's device.
        prepared: as for :func:`~ziggurat.training.open_recommender.open_recommender`.
        checkpoint: ``best``, ``last`` or a step of a run; an ensemble has its own.

    Raises:
        ConfigError: a checkpoint of an ensemble was asked for.
        RunFolderError: as for a run; the message names the member.
    """
    if isinstance(opened, Run):
        layout = opened.experiment.layout(schema)
        with open_recommender(opened, layout, device, prepared=prepared, checkpoint=checkpoint) as found:
            yield OpenModel(found.recommender, found.note)
        return
    check_no_checkpoint(opened, checkpoint)
    with contextlib.ExitStack() as stack:
        recommenders: list[Recommender] = []
        notes: list[str] = []
        for member in opened.members:
            with of_member(opened.folder, member):
                layout = member.run.experiment.layout(schema)
                opening = open_recommender(member.run, layout, device, prepared=prepared, checkpoint=member.step)
                found = stack.enter_context(opening)
            recommenders.append(found.recommender)
            notes += [] if found.note is None else [f"member {member}: {found.note}"]
        yield OpenModel(CombinedRecommender(recommenders, opened.weights), "\n".join(notes) or None)


def check_no_checkpoint(opened: Run | Ensemble, checkpoint: str) -> None:
    """Refuses to choose a checkpoint of an ensemble.

    Raises:
        ConfigError: it is another than the default.
    """
    if isinstance(opened, Ensemble) and checkpoint != "best":
        raise ConfigError(
            f"checkpoint {checkpoint!r}: {opened.folder} is an ensemble, which names the checkpoint of each member",
            "leave --checkpoint out, or name a single run",
        )


def _of_columns(tasks: Sequence[Task], weights: Mapping[str, float]) -> list[float]:
    """Returns the weight of each column."""
    return [weights[task.name] for task in tasks for _ in range(task.columns)]
