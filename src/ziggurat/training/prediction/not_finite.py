"""Explains why the logit of a row is not a finite number.

Shape legend: B rows of the batch, F dense features, L ids.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ziggurat.core.batch import Batch
from ziggurat.core.errors import shorten
from ziggurat.training.recommender import Recommender


@torch.no_grad()
def damaged_rows(recommender: Recommender, batch: Batch) -> str | None:
    """Returns which embedding rows that a batch looks up are not finite; None if all are.

    Args:
        recommender: the recommender, at world size 1.
        batch: the batch, on the recommender's device; usually of a single row.
    """
    weights = {each.name: each.tensor.detach() for each in recommender.lookup.tensor_slices() if each.rows is None}
    table_of = recommender.lookup.layout.table_of
    for feature, ids_L in _ids(batch):
        table = table_of[feature].name
        weight = weights.get(table)
        if weight is None or weight.is_meta or not len(ids_L):
            continue
        bad_L = ~torch.isfinite(weight[ids_L.long()]).all(dim=1)
        if bool(bad_L.any()):
            found = sorted(set(ids_L[bad_L].tolist()))
            plural = "" if len(found) == 1 else "s"
            which = ", ".join(map(str, found[:10])) + (", …" if len(found) > 10 else "")
            return f"feature {feature!r} looks up row{plural} {which} of table {table!r}, not finite"
    for feature, row in recommender.lookup.finish(recommender.lookup.start(batch)).by_feature.items():
        if feature and not bool(torch.isfinite(row).all()):  # rows of offloaded tables are not in memory
            ids = next(ids_L.tolist() for name, ids_L in _ids(batch) if name == feature)
            return (
                f"feature {feature!r} looks up rows {shorten(ids)} of table {table_of[feature].name!r}, not all finite"
            )
    return None


def largest_input(recommender: Recommender, batch: Batch) -> str:
    """Returns the numeric feature of a batch with the largest value, and that value; empty if there are none."""
    names, dense_BF = recommender.lookup.layout.schema.dense, batch.dense_BF
    if not names or not len(dense_BF):
        return ""
    largest_F = dense_BF.abs().amax(dim=0)
    place = int(largest_F.argmax())
    return f"; numeric feature {names[place]!r} is {float(largest_F[place]):.4g} after its transforms"


def _ids(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """Yields each sparse feature with its ids (L,)."""
    for part in (batch.bags, batch.sequences):
        if part is not None:
            for feature in part.keys():  # noqa: SIM118 - not a mapping
                yield feature, part[feature].values()
