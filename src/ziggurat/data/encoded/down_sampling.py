"""Keeps a share of the negatives of training batches.

Which ones is a function of the seed, the epoch and the row's place in the epoch's stream, so it is the same on any
number of ranks and after a resumption, and another share in each epoch: over a few epochs most negatives are seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from ziggurat.core.batch import Batch
from ziggurat.core.hashing import hash_integers
from ziggurat.data.encoded.loader import Cursor, StepRows

SEED = 0x6E656761746976


def down_sampled(
    batches: Iterator[tuple[Batch, Cursor]], steps: Iterator[StepRows], rate: float, seed: int, epoch: int
) -> Iterator[tuple[Batch, Cursor]]:
    """Yields the batches with all positives and a share of the negatives, each with the cursor after it.

    A batch in which nothing is kept has its first row with a weight of 0.

    Args:
        batches: batches with a single binary label.
        steps: the rows of the same steps.
        rate: the share of negatives to keep.
        seed: the seed of the training.
        epoch: the epoch that all batches are of.
    """
    draw = SEED ^ (seed << 20) ^ epoch
    limit = np.uint64(min(int(rate * 2**64), 2**64 - 1))
    for (batch, cursor), step in zip(batches, steps, strict=True):
        places = np.arange(step.rows.start, step.rows.stop)
        kept_B = torch.from_numpy(hash_integers(places, draw % 2**63) <= limit) | (batch.labels_BT[:, 0] > 0)
        if not bool(kept_B.any()):
            weights_B = torch.zeros(batch.size)
            kept_B[0] = True
            batch = replace(batch, weights_B=weights_B)
        yield batch.take(kept_B), cursor
