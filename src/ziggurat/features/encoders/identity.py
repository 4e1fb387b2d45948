"""Identity encoder: the values are row numbers already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pydantic

from ziggurat.core.config import Config
from ziggurat.features.encoders.encoder import Ids, State
from ziggurat.features.versions import check_version

IDENTITY_VERSION = 1


class IdentityConfig(Config):
    """Integer values in [0, rows) taken as row numbers; no row is kept for missing values, so none may be missing."""

    name: Literal["identity"] = "identity"
    rows: int = pydantic.Field(ge=1)
    """Rows of the table; a value outside [0, rows) makes its row a bad row."""


@dataclass(frozen=True, slots=True)
class IdentityEncoder:
    """``id = value``."""

    rows: int

    @property
    def unknown_rows(self) -> range:
        return range(0)

    def transform(self, values: pa.Array) -> Ids:
        ids: Ids = values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        # rows with other values were refused where their file and line are known (checks.py)
        assert not len(ids) or (ids.min() >= 0 and ids.max() < self.rows), (ids.min(), ids.max(), self.rows)
        return ids

    def to_state(self) -> State:
        return {"name": "identity", "version": IDENTITY_VERSION, "rows": self.rows}, {}

    @classmethod
    def from_state(cls, figures: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Self:
        del arrays
        check_version("identity encoder", figures["version"], IDENTITY_VERSION)
        return cls(int(figures["rows"]))
