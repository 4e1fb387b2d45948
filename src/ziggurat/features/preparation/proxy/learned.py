"""What a proxy learned: a file of vectors, which the fitting of each table reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ziggurat.core.digests import FileChecksum, digest_of_parts, load_tensors
from ziggurat.core.errors import DataError
from ziggurat.core.hashing import UInt64Array
from ziggurat.core.untrusted import Damage

DAMAGED_PROXY = Damage(DataError, "delete the folder; the proxy is then trained again")


@dataclass(frozen=True, slots=True)
class Learned:
    """What a proxy learned: the file of its vectors, with their checksum.

    Attributes:
        path: safetensors: for each table its vectors, float32 (values, dim + 1).
        checksum: the checksum of that file.
        digests: table -> digest of its values, in the order of the vectors.
        losses: the loss on validation rows after each pass; on training rows if there are none.
        importance: table -> the mean over its look-ups of the squared change of the logit if all its values shared one
            row.
    """

    path: Path
    checksum: FileChecksum
    digests: dict[str, str]
    losses: list[float]
    importance: dict[str, float]

    def vectors(self, table: str, digest: str) -> npt.NDArray[np.float32]:
        """Returns the vectors of a table.

        Args:
            table: its name.
            digest: the digest of its values.

        Raises:
            DataError: the file is damaged, or was made of other values.
        """
        arrays = load_tensors(self.path, self.checksum, DAMAGED_PROXY)
        if self.digests.get(table) != digest or table not in arrays:
            raise DAMAGED_PROXY.of(self.path, f"has no vectors of the values of table {table!r}")
        return arrays[table]


def values_digest(hashes: UInt64Array) -> str:
    """Returns a digest of values in their order, from their hashes."""
    return digest_of_parts([np.ascontiguousarray(hashes)])
