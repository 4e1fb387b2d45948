"""What an embedding table is, before anybody decides where it lives."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Pooling = Literal["sum", "mean"]


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One embedding table.

    Attributes:
        name: unique among the tables of a model.
        rows: number of embeddings; every id lies in ``[0, rows)``.
        dim: floats per row.
        features: the features that look it up, in schema order.
        pooling: how the rows of a bag become one vector.
        optimizer: name of the row optimizer and its settings, fused into backward.
        init_std: standard deviation of the normal initial weights.
    """

    name: str
    rows: int
    dim: int
    features: tuple[str, ...]
    pooling: Pooling
    optimizer: dict[str, Any]
    init_std: float

    @property
    def weight_bytes(self) -> int:
        """Bytes of the float32 weights, without optimizer state."""
        return 4 * self.rows * self.dim

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
