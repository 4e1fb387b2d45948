"""Opens the recommender of a run on its devices, for training, evaluation and prediction.

Resolves the plan, the order of rows and the folder for offloaded rows, assembles the recommender, restores a checkpoint
if requested, and closes the lookup at the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from ziggurat.core.errors import RunFolderError
from ziggurat.core.progress import Progress
from ziggurat.data.encoded.manifest import ENCODERS, MANIFEST_FILE
from ziggurat.embeddings.layout import Layout
from ziggurat.parallel.agreement import on_first_rank
from ziggurat.parallel.world import World
from ziggurat.training.placement.plan_resolution import device_kind, offload_folder, resolve_plan, row_ranks
from ziggurat.training.recommender import Recommender, assemble
from ziggurat.training.recommender_state import restore_from
from ziggurat.training.run_folder.run import Run


@dataclass(frozen=True, slots=True)
class OpenRecommender:
    """A recommender on its devices.

    Attributes:
        recommender: the assembled recommender, restored from a checkpoint if one was requested.
        note: a note for the user about its placement or the restored weights, if any.
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
        run: the run, with its experiment, plan, checkpoints and offloaded rows.
        layout: the layout of the experiment's tables.
        device: this rank's device.
        prepared: folder of the encoded dataset with its statistics. None if there is none, as in prediction, which then
            runs on one device.
        checkpoint: ``best``, ``last`` or a step to restore; None for fresh weights.
        keep_plan: whether the plan and the order of rows are stored in the run folder, where a resumed run finds them.
            If not, plans are not measured, and offloaded rows may be stored in the folder for temporary files.
        progress: where a planner that measures shows its progress.

    Raises:
        ConfigError: the ``planning`` section contradicts itself or the devices.
        NoFeasiblePlan: the devices have too little memory; the message says how much is enough.
        RunFolderError: there is no such checkpoint, or its dense weights are not finite.
    """
    experiment = run.experiment
    step = None if checkpoint is None else on_first_rank(lambda: _checked_step(run, layout, checkpoint, prepared))
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
    starts = checkpoint is None and experiment.starts_at_labels
    labels = run.labels() if starts else {}
    recommender = assemble(
        experiment, layout, plan, device, ranks, offloaded, labels=labels, own_random=checkpoint is not None
    )
    try:
        note = recommender.lookup.note
        if starts and not labels:
            note = (
                "the data was prepared by an earlier ziggurat, which did not store base rates: predictions begin at 1/2"
            )
        if step is not None:
            note = restore_from(recommender, run.checkpoints, step)
            check_dense_weights(recommender, run.folder, step)
        yield OpenRecommender(recommender, note)
    finally:
        recommender.lookup.close()


def _checked_step(run: Run, layout: Layout, checkpoint: str | int, prepared: Path | None) -> int:
    """Returns the step of a checkpoint whose tables have the sizes that memory would be allocated for.

    Args:
        run: the run.
        layout: the layout of the tables, whose sizes come from the run's encoders or from the dataset.
        checkpoint: ``best``, ``last`` or a step.
        prepared: the dataset, if the layout comes from it.

    Raises:
        RunFolderError: there is no such checkpoint, or a size differs; the message names the table.
    """
    step = run.checkpoints.find(checkpoint)
    saved = run.checkpoints.load(step).shapes("tables") or {}
    for table in layout.tables:
        shape = saved.get(table.name)
        if shape is not None and shape[0] != table.rows:
            source = run.folder / ENCODERS if prepared is None else prepared / MANIFEST_FILE
            raise RunFolderError(
                f"{source}: table {table.name!r} has {table.rows:,} rows, and {shape[0]:,} in the checkpoint of step "
                f"{step:,} of {run.folder}",
                "restore the folder `encoders` of the run, or name the dataset that it was trained on with --prepared",
            )
    return step


def check_dense_weights(recommender: Recommender, folder: Path, step: int) -> None:
    """Refuses dense weights with which every prediction would be nan. All ranks call it.

    Args:
        recommender: the recommender, restored from a checkpoint.
        folder: its run folder, for the message.
        step: the step of the checkpoint, for the message.

    Raises:
        RunFolderError: a parameter holds a value that is not finite, or a buffer holds nan; the message names it.
    """
    faults = [_fault(recommender)]
    if dist.get_world_size() > 1:
        faults = [None] * dist.get_world_size()
        dist.all_gather_object(faults, _fault(recommender))
    fault = next((each for each in faults if each is not None), None)
    if fault is not None:
        raise RunFolderError(
            f"{folder}: checkpoint of step {step:,}: {fault}; each prediction would be nan",
            f"choose another checkpoint (`ziggurat checkpoint list {folder}`); if all are like this one, train again "
            "with a lower learning rate or training.clip_norm",
        )


def _fault(recommender: Recommender) -> str | None:
    """Returns which dense parameter or buffer is not finite, and how much of it; None if all are finite."""
    parameters = recommender.dense_parameters()
    for tensor_slice in recommender.dense_slices():
        tensor = tensor_slice.tensor.detach()
        if not tensor.is_floating_point():
            continue
        is_parameter = tensor_slice.name in parameters  # a buffer may hold infinities, for example in a mask
        bad = int((~torch.isfinite(tensor) if is_parameter else torch.isnan(tensor)).sum())
        if bad:
            kind = "parameter" if is_parameter else "buffer"
            return f"{bad:,} of {tensor.numel():,} values of the {kind} {tensor_slice.name!r} are not finite"
    return None
