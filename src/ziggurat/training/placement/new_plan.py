"""Takes a new plan when a run resumes, from the rows that it is about to look up.

A plan with tiers of rows copies those that were looked up most often in the training rows, all of them. The batches
ahead may look up others: negatives are sampled or dropped during training, and the blocks of an epoch differ. The
order of the batches is known, so those ahead are read and counted, instead of those behind. Whether another plan gains
by them is for :mod:`~ziggurat.training.placement.drift` to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ziggurat.core.batch import Batch
from ziggurat.core.errors import ConfigError, RunFolderError
from ziggurat.core.plan import Plan
from ziggurat.core.row_order import FrequencyRanks
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.core.untrusted import Damage
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.down_sampling import down_sampled
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.embeddings.layout import Layout
from ziggurat.planning.problem import Problem
from ziggurat.training.experiment import Experiment
from ziggurat.training.in_batch_negatives import rows_read, with_negatives
from ziggurat.training.placement.counted_lookups import Counts, count_in_parts
from ziggurat.training.placement.drift import gains
from ziggurat.training.run_folder.run import open_run
from ziggurat.training.train_state import TrainState

COUNTED_EXAMPLES = 2**18
"""The most examples ahead whose look-ups are counted; a table of a million rows gets some look-ups for its hot ones."""


@dataclass(frozen=True, slots=True)
class Recounted:
    """Look-ups ahead, by which a run is to take a new plan.

    Attributes:
        counts: table -> how often an epoch like the examples ahead looks up each row.
        note: why, for the user and for the notes of the plan.
    """

    counts: Counts
    note: str


def recounted(
    experiment: Experiment,
    layout: Layout,
    plan: Plan | None,
    ranks: Mapping[str, FrequencyRanks] | None,
    statistics: DatasetStatistics,
    prepared: Path,
    folder: Path,
    problem: Problem,
) -> Recounted | None:
    """Returns the look-ups by which the run is to take a new plan; None if it is to keep its plan, or to plan by those
    that it has.

    A run that has no checkpoint keeps its plan: it has just been made.

    Args:
        experiment: the config; ``planning.new_plan`` says when.
        layout: the layout of the tables.
        plan: the plan of the run; None if it is for other ranks or tables, so that a new one is made in any case.
        ranks: the rank of each row by falling frequency that the run has stored for it, if any.
        statistics: the look-ups by which the run has planned so far.
        prepared: folder of the encoded dataset.
        folder: the run folder.
        problem: the tables and devices, with these look-ups.

    Raises:
        ConfigError: readers hold the training rows.
        RunFolderError: the last checkpoint is damaged.
    """
    when = experiment.planning.new_plan
    if when == "never" or (when == "drifted" and plan is None):
        return None
    run = open_run(folder)
    step = run.checkpoints.last()
    if step is None:
        return None
    if experiment.training.readers:
        raise ConfigError(
            f"planning.new_plan={when}: look-ups are counted in training rows on this machine, but training.readers "
            "hold them",
            "set planning.new_plan: never, or prepare the dataset here and leave out training.readers",
        )
    damage = Damage(RunFolderError, "delete the checkpoint's folder to resume from the one before")
    where = f"{run.folder}: checkpoint of step {step}"
    cursor = TrainState.from_json(run.checkpoints.load(step).state.get("progression"), where, damage).cursor
    halves = count_in_parts(_batches_ahead(experiment, Dataset(prepared), cursor), layout, 2)
    examples = sum(each for _, each in halves)
    if not examples:
        return None
    ahead = f"counted in the next {examples:,} examples from step {step:,} on"
    gained = {} if plan is None else gains(problem, experiment.planning.planner, plan, ranks or {}, halves)
    if when == "drifted" and not gained:
        return None
    scale = statistics.rows["train"] / examples
    (first, _), (second, _) = halves
    counts = {name: np.rint((each + second[name]) * scale).astype(np.int64) for name, each in first.items()}
    lines = [f"table {name!r}: other copies save {share:.0%} of its modelled time" for name, share in gained.items()]
    why = "; ".join(lines) or "as asked for"
    return Recounted(counts, f"planning.new_plan={when}: a new plan by look-ups {ahead}: {why}")


def _batches_ahead(experiment: Experiment, dataset: Dataset, cursor: Cursor) -> Iterator[Batch]:
    """Yields the batches from a cursor on, into the next epoch, until they have enough examples."""
    config, left = experiment.training, COUNTED_EXAMPLES
    size = rows_read(config.batch_size, experiment.data.negatives, 1)
    local = Loader(dataset.split("train"), dataset.schema, size, shuffle=True, seed=config.seed, prefetch=0)
    loader = with_negatives(local, experiment, dataset)
    for start in (cursor, Cursor(cursor.epoch + 1)):
        batches: Iterator[tuple[Batch, Cursor]] = loader.epoch(start)
        if config.negative_rate is not None:
            batches = down_sampled(batches, local.steps(start), config.negative_rate, config.seed, start.epoch)
        for batch, _ in batches:
            yield batch
            left -= batch.size
            if left <= 0:
                return
        if left < COUNTED_EXAMPLES / 2 or start.epoch + 1 >= config.epochs:
            return
