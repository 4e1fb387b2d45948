"""Draws architectures from a trained super-net, and ranks them by its weights on validation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ziggurat.core.progress import Progress
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.metrics.names import higher_is_better
from ziggurat.parallel.agreement import on_any_rank
from ziggurat.search.architecture.feasible import Limits, drawn_within
from ziggurat.search.architecture.space.decision import hard_masks
from ziggurat.search.architecture.supernet.loop import SuperNetTrainer
from ziggurat.training.evaluate import evaluate_split
from ziggurat.training.signals import StopRequest
from ziggurat.training.train_state import monitored


@dataclass(frozen=True, slots=True)
class Drawn:
    """An architecture that was drawn.

    Attributes:
        choices: name of a decision -> index of its choice.
        value: the monitored metric on validation with the weights of the super-net; it ranks, and is reported nowhere.
    """

    choices: dict[str, int]
    value: float


_APART = 1_000
"""Numbers between the first draws of two architectures: each may be drawn anew until it keeps the limits."""


def draw_architectures(
    trainer: SuperNetTrainer, limits: Limits, count: int, dataset: Dataset, stop: StopRequest, progress: Progress
) -> list[Drawn] | None:
    """Returns different architectures within the limits, the best first; None if a signal came. All ranks call it.

    Args:
        trainer: the super-net, trained.
        limits: the limits.
        count: how many are drawn; equal ones are counted once.
        dataset: the prepared data.
        stop: whether to stop.
        progress: where to show progress.
    """
    space, recommender = trainer.space, trainer.recommender
    experiment = space.experiment
    with torch.no_grad():
        liking = {name: torch.log(value.clamp_min(1e-9)) for name, value in trainer.logits.probabilities().items()}
    likeliest = {name: int(value.argmax()) for name, value in liking.items()}
    found: list[dict[str, int]] = []
    known = set[str]()
    for number in range(count):
        draw = trainer.logits.drawn if number else lambda place: likeliest if not place else trainer.logits.drawn(place)
        choices = drawn_within(space, limits, draw, liking, number * _APART)
        decoded = space.decoded(choices).model_dump_json()  # of a layer that is left out, no other choice matters
        if decoded not in known:
            known.add(decoded)
            found.append(choices)
    progress.start("rank architectures", len(found), "architectures")
    drawn: list[Drawn] = []
    for number, choices in enumerate(found, start=1):
        if on_any_rank(stop.signal is not None):
            return None
        recommender.net.masks = hard_masks(space.decisions, choices)
        metrics = evaluate_split(
            recommender, dataset.split("validation"), dataset.schema, trainer.device, experiment.evaluation.batch_size
        )
        value = monitored(metrics.compute(), experiment.training.monitor, recommender.outputs.tasks)
        drawn.append(Drawn(choices, value))
        progress.advance(number)
    progress.finish()
    sign = -1 if higher_is_better(experiment.training.monitor) else 1
    return sorted(drawn, key=lambda each: math.inf if math.isnan(each.value) else sign * each.value)
