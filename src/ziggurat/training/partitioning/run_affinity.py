"""Measures how much the features of a trained run interact.

Shape legend: B rows, F features, K fields, D embedding width.
"""

from __future__ import annotations

import torch

from ziggurat.core.errors import ConfigError
from ziggurat.core.memory import explained_thread_limit
from ziggurat.core.progress import Progress, Silent
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.data.encoded.manifest import ENCODERS
from ziggurat.embeddings.layout import Layout
from ziggurat.features.outside_encoders import check_outside_encoders
from ziggurat.towers.partitioner.affinity import Affinity, Floats
from ziggurat.training.open_recommender import open_recommender
from ziggurat.training.process_group import pick_device, process_group
from ziggurat.training.run_folder.run import Run

MOST_ROWS = 1 << 17
"""Rows after which the affinity is taken as known: its standard error is then below .002."""


@torch.no_grad()
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
    affinity = Affinity([number_of[source.features[0]] for source in layout.sources for _ in source.fields])
    total = min(blocks.rows, MOST_ROWS)
    with (
        explained_thread_limit(),
        process_group(device),
        open_recommender(run, layout, device, prepared=dataset.folder, checkpoint=checkpoint) as opened,
    ):
        opened.recommender.eval()
        progress.start(f"affinity on {split}", total, "rows")
        for batch, _ in loader.epoch(Cursor()):
            affinity.update(opened.recommender(batch.to(device))[1])
            progress.advance(min(affinity.rows, total))
            if affinity.rows >= MOST_ROWS:
                break
        progress.finish()
    measured_FF = affinity.compute(len(number_of))
    for source in layout.sources:
        first, *others = (number_of[feature] for feature in source.features)
        for other in others:  # the members of a group have one vector
            measured_FF[other], measured_FF[:, other] = measured_FF[first], measured_FF[:, first]
            measured_FF[other, other] = 1.0
    return measured_FF
