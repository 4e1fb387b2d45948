"""The one way from a run and a layout to a recommender that is placed on its devices, and back to none.

Resolves the plan, the order of rows and the folder of offloaded rows, assembles the recommender, restores a checkpoint
if one is asked for, and closes the lookup in the end. Training, evaluation and prediction all open theirs here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import torch

from ziggurat.core.progress import Progress
from ziggurat.embeddings.layout import Layout
from ziggurat.parallel.agreement import on_first_rank
from ziggurat.parallel.world import World
from ziggurat.training.placement.plan_resolution import device_kind, offload_folder, resolve_plan, row_ranks
from ziggurat.training.recommender import Recommender, assemble
from ziggurat.training.recommender_state import restore_from
from ziggurat.training.run import Run


@dataclass(frozen=True, slots=True)
class OpenRecommender:
    """A recommender on its devices.

    Attributes:
        recommender: assembled, and restored if a checkpoint was asked for.
        note: what a user should know about how it is placed or what was restored, if anything.
    """

    recommender: Recommender
    note: str | None


@contextlib.contextmanager
def open_recommender(
    run: Run,
    layout: Layout,
    device: torch.device,
    *,
    prepared: Path | None,
    checkpoint: str | int | None = None,
    keep_plan: bool = False,
    progress: Progress | None = None,
) -> Generator[OpenRecommender]:
    """Opens the recommender of a run on the ranks of the current process group, which all call it.

    Args:
        run: whose experiment, plan, checkpoints and offloaded rows count.
        layout: of the experiment's tables.
        device: this rank's.
        prepared: folder of the encoded dataset with its statistics; None where there is none, as in prediction, which
            then runs on one device.
        checkpoint: ``best``, ``last`` or a step to restore; None for fresh weights.
        keep_plan: whether the plan, and the order of rows, are left in the run folder for the run to go on with. If
            not, nothing is measured for them, and offloaded rows may move to the folder for temporary files.
        progress: where a planner that measures shows it.

    Raises:
        ConfigError: ``planning`` asks for what cannot be.
        NoFeasiblePlan: the devices have too little memory; the message says what would be enough.
        RunFolderError: there is no such checkpoint.
    """
    experiment = run.experiment
    plan = resolve_plan(
        experiment,
        layout,
        World.current(),
        device_kind(device),
        prepared,
        run.folder,
        keep=keep_plan,
        progress=progress,
    )
    ranks = row_ranks(plan, layout, prepared, run.folder, keep=keep_plan)
    offloaded = offload_folder(experiment, plan, run.folder, elsewhere=not keep_plan)
    recommender = assemble(experiment, layout, plan, device, ranks, offloaded)
    try:
        note = recommender.lookup.note
        if checkpoint is not None:
            step = on_first_rank(lambda: run.checkpoints.find(checkpoint))
            note = restore_from(recommender, run.checkpoints, step)
        yield OpenRecommender(recommender, note)
    finally:
        recommender.lookup.close()
