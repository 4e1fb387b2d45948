"""Places as rows of zeros with a single one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ziggurat.search.pipelines.table import Floats


def one_hot(places: npt.NDArray[np.integer], count: int) -> Floats:
    """Returns (n, count): in each row a 1 at its place, from 0 on."""
    hot = np.zeros((len(places), count))
    hot[np.arange(len(places)), places] = 1.0
    return hot
