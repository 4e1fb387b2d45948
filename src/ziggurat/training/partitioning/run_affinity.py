"""Measures how much the features of a trained run interact.

Shape legend: B rows, F features, K fields of tables' rows, D their width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ziggurat.core.errors import ConfigError
from ziggurat.core.memory import explained_thread_limit
from ziggurat.core.progress import Progress, Silent
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.data.encoded.manifest import ENCODERS
from ziggurat.embeddings.layout import Layout
from ziggurat.features.outside_encoders import check_outside_encoders
from ziggurat.towers.partitioner.affinity import Affinity, FieldMeans, Floats
from ziggurat.training.open_recommender import open_recommender
from ziggurat.training.process_group import pick_device, process_group
from ziggurat.training.recommender import Recommender
from ziggurat.training.run_folder.run import Run

MOST_ROWS = 1 << 16
"""Rows after which the affinity is taken as known: its standard error is then about .001."""


def measure_affinity(
    run: Run, dataset: Dataset, layout: Layout, *, checkpoint: str = "best", progress: Progress | None = None
) -> Floats:
    """Returns the affinity of the features that have tables, (F, F), in the order of ``layout.schema.sparse``.

    It is measured on the validation split, or on the training split if that has no rows, on at most
    :data:`MOST_ROWS` rows. The vectors are the fields that the model sees: tables of another width than the model's
    have been projected to it, sequences encoded. A feature of a group has the group's vector.

    Args:
        run: the run of a flat model.
        dataset: its prepared dataset.
        layout: the layout of its tables.
        checkpoint: ``best``, ``last`` or a step.
        progress: where to show progress.

    Raises:
        ConfigError: the dataset has no rows.
        RunFolderError: there is no such checkpoint.
    """
    progress = progress or Silent()
    split = "validation" if dataset.split("validation").rows else "train"
    blocks = dataset.split(split)
    if not blocks.rows:
        raise ConfigError(f"{dataset.folder}: has no rows", "prepare data that has some")
    check_outside_encoders(run.folder / ENCODERS, run.experiment.features)
    device = pick_device(run.experiment.training.device)
    loader = Loader(blocks, dataset.schema, run.experiment.evaluation.batch_size, shuffle=False)
    number_of = {feature: number for number, feature in enumerate(layout.schema.sparse)}
    feature_of = [number_of[source.features[0]] for source in layout.sources for _ in source.fields]
    total = min(blocks.rows, MOST_ROWS)
    with (
        explained_thread_limit(),
        process_group(device),
        open_recommender(run, layout, device, prepared=dataset.folder, checkpoint=checkpoint) as opened,
    ):
        recommender = opened.recommender.eval()
        means = FieldMeans(len(feature_of), layout.dim)
        _pass(recommender, loader, device, means.update, total, progress, f"mean vectors on {split}")
        affinity = Affinity(feature_of, means.compute())
        _pass(recommender, loader, device, affinity.update, total, progress, f"affinity on {split}")
    measured_FF = affinity.compute(len(number_of))
    for source in layout.sources:
        first, *others = (number_of[feature] for feature in source.features)
        for other in others:  # the members of a group have one vector
            measured_FF[other], measured_FF[:, other] = measured_FF[first], measured_FF[:, first]
            measured_FF[other, other] = 1.0
    return measured_FF


def _pass(
    recommender: Recommender,
    loader: Loader,
    device: torch.device,
    update: Callable[[Tensor], None],
    rows: int,
    progress: Progress,
    stage: str,
) -> None:
    """Passes the vectors of the first rows of a split to ``update``, batch by batch."""
    progress.start(stage, rows, "rows")
    done = 0
    for batch, _ in loader.epoch(Cursor()):
        with torch.no_grad():
            emb_BKD = recommender(batch.to(device))[1]
        update(emb_BKD[: rows - done])
        done += len(emb_BKD)
        progress.advance(min(done, rows))
        if done >= rows:
            break
    progress.finish()
