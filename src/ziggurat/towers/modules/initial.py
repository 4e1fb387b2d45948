"""Initial weights of the linear maps of tower modules."""

from __future__ import annotations

import math

from torch import nn


def orthogonal(linear: nn.Linear) -> nn.Linear:
    """Gives a linear map orthogonal rows, or columns if it has more outputs than inputs, and no bias; returns it.

    Numbers keep their mean square, and no output repeats another. torch's own start makes them a third as large in
    square, under a bias that is larger than fresh embeddings: a DLRM, which multiplies outputs, then learns late. On
    the log of planted groups four towers of compression 2 had an AUC of .827 after an epoch, of .784 with torch's
    start, and of .815 with normal weights of the same mean square, all of one seed (docs/lab-notebook.md).

    Source: Saxe et al. 2014, "Exact solutions to the nonlinear dynamics of learning", ICLR; the gain is ours.
    """
    nn.init.orthogonal_(linear.weight, gain=max(1.0, math.sqrt(linear.out_features / linear.in_features)))
    nn.init.zeros_(linear.bias)
    return linear
