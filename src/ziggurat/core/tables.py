"""What an embedding table is, before anybody decides where it lives."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
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
        pooling: how the rows of a bag become one.
        optimizer: name of the row optimizer and its settings, fused into backward.
        init_std: standard deviation of the normal initial weights.
        vectors: how many vectors lie side by side in a row; ``dim`` is a multiple of it.
        positions: sequence -> how many of its last ids are looked up each by itself instead of being pooled.
    """

    name: str
    rows: int
    dim: int
    features: tuple[str, ...]
    pooling: Pooling
    optimizer: dict[str, Any]
    init_std: float
    vectors: int = 1
    positions: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def vector_dim(self) -> int:
        """Floats per vector."""
        return self.dim // self.vectors

    @property
    def keys(self) -> tuple[str, ...]:
        """What is looked up: the features, each sequence of ``positions`` replaced by its positions, side by side."""
        return tuple(key for feature in self.features for key in self.keys_of(feature))

    def keys_of(self, feature: str) -> tuple[str, ...]:
        """``("history:0", "history:1", …)``, the most recent first; of what is pooled, the feature itself."""
        if feature not in self.positions:
            return (feature,)
        return tuple(f"{feature}:{position}" for position in range(self.positions[feature]))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the float32 weights, without optimizer state."""
        return 4 * self.rows * self.dim

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
