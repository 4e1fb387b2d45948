"""Which rows are looked up how often: Zipf's law, or the reuse of rows that a file of production statistics tells.

The file is ``dlrm_locality_stats_2021.txt``, published with Facebook's dlrm_datasets: of the rows of a batch of 65,536,
how many are looked up how often. This module is imported by the process of the load, so it imports little.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
BAG, EXPONENT = 20, 1.05
USERS, ITEMS = "user", "item"


@dataclass(frozen=True, slots=True)
class Skew:
    """How often rows of a table are looked up, the most frequent first.

    Attributes:
        ends: where the parts of the rows end, as shares of the rows.
        lookups: the cumulated shares of the look-ups of these parts; None: Zipf's law.
    """

    ends: tuple[float, ...] = ()
    lookups: tuple[float, ...] | None = None

    @classmethod
    def read(cls, folder: Path | None) -> Skew:
        """Reads production statistics, if there are any."""
        path = None if folder is None else folder / "dlrm_locality_stats_2021.txt"
        if path is None or not path.exists():
            return cls()
        text = path.read_text().split("Ratio of index distribution")
        rows, lookups = ([float(each) for each in re.findall(r"\]: ([0-9.]+)", part)] for part in text[:2])
        count = min(len(rows), len(lookups))
        shares = [np.array(each[:count])[::-1].cumsum() for each in (rows, lookups)]
        ends, falls = ([float(each) for each in share / share[-1]] for share in shares)
        return cls(tuple(ends), tuple(falls))

    def ranks(self, random: np.random.Generator, count: int, rows: int) -> Ints:
        """Draws ranks of rows, 0 for the most frequent."""
        if self.lookups is None:
            power = 1 - EXPONENT  # the inverse of the continuous distribution
            u = random.random(count)
            return np.minimum(((1 + u * (float(rows) ** power - 1)) ** (1 / power)).astype(np.int64) - 1, rows - 1)
        part = np.minimum(np.searchsorted(self.lookups, random.random(count)), len(self.ends) - 1)
        ends = (np.concatenate([[0.0], self.ends]) * rows).astype(np.int64)
        return np.minimum(
            ends[part] + (random.random(count) * (ends[part + 1] - ends[part])).astype(np.int64), rows - 1
        )


def spread(ranks: Ints, rows: int) -> Ints:
    """Returns ids of ranks, so that frequent rows are not neighbours: an affine permutation."""
    step = 0x9E3779B1 % rows
    while np.gcd(step, rows) != 1:
        step += 1
    return ranks * step % rows
