"""Predicts the memory and the time of a search of architectures, by a few real steps."""

from __future__ import annotations

import contextlib
import math
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ziggurat.core.engine import check_engine
from ziggurat.core.progress import Progress, Silent
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.parallel.own_random import preserved_random_state
from ziggurat.planning.quantities import format_bytes
from ziggurat.search.architecture.config import ArchitectureSearchConfig, read_search_config
from ziggurat.search.architecture.feasible import drawn_within, equal_liking, uniform_draw
from ziggurat.search.architecture.latency import latency_table
from ziggurat.search.architecture.space.decision import hard_masks
from ziggurat.search.architecture.space.whole_space import WholeSpace
from ziggurat.search.architecture.supernet.loop import SuperNetTrainer
from ziggurat.search.architecture.supernet.opened import check_searchable, opened_super_net
from ziggurat.search.validation_rows import check_validation_rows
from ziggurat.training.experiment import Experiment, as_experiment
from ziggurat.training.preparation import prepare, prepared_folder
from ziggurat.training.process_group import pick_device, process_group
from ziggurat.training.train import train

_WARM, _STEPS = 3, 8
_ROUNDS = 3
_TRAINED = (4, 24)
"""Steps of two trainings, whose difference is that of steps alone."""


@dataclass(frozen=True, slots=True)
class PredictedSearch:
    """What a search will take, from steps that were measured.

    Attributes:
        supernet_s: wall-clock of the super-net; the most it may take if ``supernet.epochs`` is not given, as it then
            trains no longer than the config as it is, which may stop early.
        ranking_s: of evaluating what is drawn from it.
        retraining_s: of the trainings from scratch, with that of the config as it is.
        peak_bytes: the most resident memory of this process.
        steps: steps of weights, and of the architecture.
        is_most: whether these are the most that there may be.
        preparations: how many trainings from scratch may have to prepare the data anew, as they keep fewer rows of a
            table.
        preparation_s: what each of these takes; None where the data was prepared before, so that nothing was measured.
    """

    supernet_s: float
    ranking_s: float
    retraining_s: float
    peak_bytes: float
    steps: tuple[int, int]
    preparations: int
    preparation_s: float | None
    is_most: bool = False

    @property
    def seconds(self) -> float:
        """Of all parts that were measured."""
        parts = self.supernet_s, self.ranking_s, self.retraining_s, self.preparations * (self.preparation_s or 0.0)
        return sum(parts)

    def text(self) -> str:
        """Returns the prediction in words."""
        also, most = "", "at most " if self.is_most else ""
        if self.preparations and self.preparation_s is None:
            also = ", and the preparation of the data for each that keeps fewer rows of a table"
        elif self.preparation_s is not None and self.preparations:
            also = f"\npreparations for those that keep fewer rows of a table, at most: {self.preparations:,} of "
            also += f"{self.preparation_s:,.1f} s"
        return (
            f"super-net: {most}{self.steps[0]:,} steps of weights and {self.steps[1]:,} of the architecture, "
            f"{self.supernet_s:,.0f} s\nranking what is drawn: {self.ranking_s:,.0f} s\n"
            f"trainings from scratch: {most}{self.retraining_s:,.0f} s{also}\n"
            f"in all: {most}{self.seconds:,.0f} s, {format_bytes(round(self.peak_bytes))} of memory"
        )


def predict_search(
    experiment: Experiment | str | Path,
    *,
    config: ArchitectureSearchConfig | Path | None = None,
    prepared: str | Path | None = None,
    progress: Progress | None = None,
) -> PredictedSearch:
    """Prepares the data if needed, makes a few steps of the super-net, and predicts the search from their medians.

    Steps of a training from scratch are those of two short trainings, of the config as it is and of an architecture
    within the limits that keeps all rows. One process measures: it predicts a search on one rank.

    Raises:
        ConfigError, DataError: as the search.
    """
    check_engine()
    experiment = as_experiment(experiment)
    experiment.check()
    check_searchable(experiment)
    settings = config if isinstance(config, ArchitectureSearchConfig) else read_search_config(config)
    progress = progress or Silent()
    is_new = not (Path(prepared) if prepared else prepared_folder(experiment)).exists()
    started = time.perf_counter()
    dataset = prepare(experiment, folder=prepared, progress=progress)
    preparation_s = time.perf_counter() - started if is_new else None
    check_validation_rows(dataset)
    device = pick_device(experiment.training.device)
    with contextlib.ExitStack() as stack:
        stack.enter_context(preserved_random_state(device))
        if experiment.training.threads is not None:
            torch.set_num_threads(experiment.training.threads)
        stack.enter_context(process_group(device, experiment.parallel.timeout_s))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ziggurat-dry-run-")))
        latency = None if settings.limits.milliseconds is None else latency_table(device)
        space = WholeSpace(settings.space, settings.tables, experiment, dataset.schema, latency)
        limits = settings.limits.resolved(space.own_costs())
        recommender = stack.enter_context(opened_super_net(space, dataset, folder, device))
        trainer = SuperNetTrainer(
            recommender, space, limits, settings.supernet, dataset, folder, device, 0, "", Silent()
        )
        recommender.train()
        weights, held = trainer.batches()
        weights_s = _median(lambda: trainer.weights_step(*next(weights)), trainer.steps_per_epoch)
        held_s = _median(lambda: trainer.architecture_step(next(held)), trainer.steps_of_architecture)
        single = drawn_within(space, limits, uniform_draw(space, 0, 0), equal_liking(space))
        started = time.perf_counter()
        trainer.save()
        saving_s = time.perf_counter() - started
        row_s = _evaluation_row(trainer, single, dataset)
    training = experiment.training
    train_steps = min(
        training.epochs * math.ceil(dataset.split("train").rows / training.batch_size), training.max_steps or 2**62
    )
    trained = [experiment, *_of_all_rows(space, single)]
    single_s = statistics.fmean(_training_step(each, dataset, train_steps) for each in trained)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    validation = dataset.split("validation").rows
    steps = trainer.total_steps, trainer.steps_of_architecture
    epochs = trainer.total_steps / trainer.steps_per_epoch
    evaluations = math.ceil(train_steps / training.evaluate_every) if training.evaluate_every else training.epochs
    one = train_steps * single_s + (evaluations + 1) * (validation * row_s + saving_s)
    return PredictedSearch(
        supernet_s=steps[0] * weights_s + steps[1] * held_s + epochs * saving_s,
        ranking_s=settings.drawn * validation * row_s,
        retraining_s=(settings.retrained + 1) * one,
        peak_bytes=peak,
        steps=steps,
        preparations=settings.retrained if any(s != 1.0 for t in space.tables.tables for s in t.shares) else 0,
        preparation_s=preparation_s,
        is_most=settings.supernet.epochs is None and training.early_stopping is not None,
    )


def _median(step: Callable[[], object], most: int) -> float:
    count = min(_STEPS, max(1, most - _WARM))
    times: list[float] = []
    for number in range(_WARM + count):
        started = time.perf_counter()
        try:
            step()
        except StopIteration:
            break
        if number >= _WARM or not times:
            times.append(time.perf_counter() - started)
    return statistics.median(times[1:] or times)


def _of_all_rows(space: WholeSpace, architecture: dict[str, int]) -> list[Experiment]:
    """Returns the config of an architecture with all rows of all tables, which needs no data of its own; none if the
    space has no such architecture."""
    changed = dict(architecture)
    for decision in space.decisions:
        if decision.name.endswith(".rows"):
            if 1.0 not in decision.choices:
                return []
            changed[decision.name] = decision.choices.index(1.0)
    return [space.decoded(changed)]


def _training_step(experiment: Experiment, dataset: Dataset, most: int) -> float:
    """Returns the seconds of a step of a training of at most so many: what a few more of them take longer."""
    more = min(_TRAINED[1], most)
    few = min(_TRAINED[0], more - 1)
    took: list[float] = []
    for steps in (few, more) if few else (more,):
        training = experiment.training.model_copy(update={"max_steps": steps, "evaluate_every": None})
        with tempfile.TemporaryDirectory(prefix="ziggurat-dry-run-") as folder:
            started = time.perf_counter()
            changed = experiment.model_copy(update={"training": training})
            train(changed, run_folder=Path(folder) / "run", prepared=dataset.folder, splits=())
            took.append(time.perf_counter() - started)
    return max(0.0, took[-1] - (took[0] if few else 0.0)) / (more - few)


def _evaluation_row(trainer: SuperNetTrainer, architecture: dict[str, int], dataset: Dataset) -> float:
    """Returns the seconds of predicting a row of the validation split."""
    trainer.recommender.net.masks = hard_masks(trainer.space.decisions, architecture)
    trainer.recommender.eval()
    size = trainer.space.experiment.evaluation.batch_size
    loader = Loader(dataset.split("validation"), dataset.schema, size, shuffle=False, prefetch=0)
    times: list[float] = []
    batch = next(loader.epoch(Cursor()))[0]
    with torch.no_grad():
        for _ in range(1 + _ROUNDS):  # the first is cold
            started = time.perf_counter()
            trainer.recommender(batch.to(trainer.device))
            times.append((time.perf_counter() - started) / batch.size)
    return min(times)
