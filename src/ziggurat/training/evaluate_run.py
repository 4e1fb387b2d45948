"""Evaluates a trained run, or an ensemble of runs, on a split of its data."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ziggurat.core.engine import check_engine
from ziggurat.core.memory import explained_thread_limit
from ziggurat.core.progress import Progress
from ziggurat.data.encoded.dataset import Split
from ziggurat.data.encoded.manifest import ENCODERS
from ziggurat.features.outside_encoders import check_outside_encoders
from ziggurat.metrics.metric_set import MetricSet
from ziggurat.training.ensemble.combined import check_no_checkpoint, open_model
from ziggurat.training.ensemble.ensemble import Ensemble, open_run_or_ensemble
from ziggurat.training.evaluate import evaluate_split
from ziggurat.training.malloc_tuning import keep_freed_memory
from ziggurat.training.process_group import pick_device, process_group, refuse_fork
from ziggurat.training.run_folder.run import Run


def evaluate(
    run: str | Path | Run | Ensemble,
    split: Split = "test",
    checkpoint: str = "best",
    progress: Progress | None = None,
    *,
    prepared: str | Path | None = None,
) -> MetricSet:
    """Returns the metrics of a run or an ensemble on a split of its data, overall and by slice.

    Args:
        run: the run or the ensemble, or its folder.
        split: the split to evaluate: ``train``, ``validation`` or ``test``.
        checkpoint: ``best``, ``last`` or a step of a run; an ensemble has its own.
        progress: where to show progress.
        prepared: folder of the encoded dataset, if it has moved since the run was trained.

    Raises:
        ConfigError: there is no such split, or a checkpoint of an ensemble was asked for.
        RunFolderError: there is no such run or checkpoint, or the folder holds another dataset; of an ensemble, the
            message names the member.
        DataError: the prepared dataset does not exist any more, or an encoder from outside the package gives other ids
            than when it was fitted.
        ForkedProcess: the process was forked from one that had computed.
    """
    check_engine()
    refuse_fork()
    opened = run if isinstance(run, Run | Ensemble) else open_run_or_ensemble(run)
    check_no_checkpoint(opened, checkpoint)
    keep_freed_memory()
    dataset = opened.dataset(prepared)
    blocks = dataset.split(split)
    source = opened.members[0].run if isinstance(opened, Ensemble) else opened
    check_outside_encoders(source.folder / ENCODERS, opened.experiment.features)
    evaluation = opened.experiment.evaluation
    device = pick_device(opened.experiment.training.device)
    with explained_thread_limit(), process_group(device) as world, contextlib.ExitStack() as stack:
        found = stack.enter_context(
            open_model(opened, dataset.schema, device, prepared=dataset.folder, checkpoint=checkpoint)
        )
        if progress is not None and world.leads and found.note is not None:
            progress.note(found.note)
        return evaluate_split(
            found.recommender,
            blocks,
            dataset.schema,
            device,
            evaluation.batch_size,
            evaluation.slices,
            progress,
        )
