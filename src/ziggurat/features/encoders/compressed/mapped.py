"""The fitted encoder of a table whose values have learned codes: frequent ones rows of their own, the others shared.

Rows: 0: missing values | ``private`` rows, each of one value | ``unseen`` rows, which values without codes share by
hash | a part of the table for each learned code | the part of the hashed code, if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.errors import shorten
from ziggurat.core.hashing import UInt64Array, hash_integers, to_buckets
from ziggurat.features.encoders.compressed.code_map import CodeMap, Codes, restored_map, seeded
from ziggurat.features.encoders.compressed.hashed_keys import ABSENT, HashedKeys, hash_keys
from ziggurat.features.encoders.encoder import Ids, State
from ziggurat.features.versions import DAMAGED, check_version, saved_integer

MAPPED_VERSION = 1
NAMES = ("learned_hash", "lsh", "clustered_codes")
_DRIFT = {"kept_values", "kept_lookups", "new_values"}, {"kept_values", "kept_lookups", "new_values", "lost_values"}
"""The shares of drift: those of encoders that forgot what new rows lacked, and today's."""
_UNSEEN_SEED, _HELPER_SEED = 1, 2
_MOST_PARTS = 8


def describe_drift(drift: Mapping[str, float]) -> str:
    """Describes what changed in an encoder that continues an earlier one."""
    lost = drift.get("lost_values", 0.0)
    return (
        f"{drift['kept_values']:.1%} of the known values that occur and {drift['kept_lookups']:.1%} of their look-ups "
        f"kept their rows; {drift['new_values']:.1%} of the values are new"
    ) + (f"; {lost:.1%} of the values of the earlier map are no longer known" if lost else "")


@dataclass(frozen=True, slots=True)
class Parts:
    """How the rows of a table are divided.

    Attributes:
        private: rows of one value each.
        unseen: rows of values without codes, 1 or more.
        coded: rows for each learned code.
        helper: rows for a code that is a hash of the value; 0: there is none.
        seed: seed of the hashes: of values without codes, of that code, and of the groups of a compact map.
    """

    private: int
    unseen: int
    coded: tuple[int, ...]
    helper: int = 0
    seed: int = 0

    @property
    def rows(self) -> int:
        """Rows of the table, with that of missing values."""
        return 1 + self.private + self.unseen + sum(self.coded) + self.helper

    @property
    def codes(self) -> int:
        """The most codes of a value."""
        return len(self.coded) + (self.helper > 0)

    @property
    def first_coded(self) -> int:
        """The first row of the learned codes."""
        return 1 + self.private + self.unseen


@dataclass(frozen=True)
class MappedEncoder:
    """The encoder of a table with a learned map.

    Attributes:
        name: the name of its config.
        parts: how the rows are divided.
        private: the values with rows of their own, by row.
        map: the codes of other known values.
        lineage: a digest of what was fitted first; an encoder that continues another one has that of the other, and
            its shared rows mean what those of the other mean.
        drift: of one that continues another: the shares of known values and of look-ups that kept their rows, and
            of values that are new or no longer known.
    """

    name: str
    parts: Parts
    private: HashedKeys
    map: CodeMap
    lineage: str
    drift: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def rows(self) -> int:
        return self.parts.rows

    @property
    def unknown_rows(self) -> range:
        """None of its own: check bits leave some unknown values undiscovered, and rare known ones have its rows too."""
        return range(0)

    @property
    def map_bytes(self) -> int:
        """Bytes of the map and of the keys of private rows."""
        return self.map.nbytes + self.private.nbytes

    def transform(self, values: pa.Array) -> Ids:
        hashes = hash_keys(values)
        ids = self.ids(self.private.find(hashes), self.map.find(values, hashes), hashes)
        return ids[:, 0] if self.parts.codes == 1 else ids

    def ids(self, private: npt.NDArray[np.int64], codes: Codes, hashes: UInt64Array) -> Ids:
        """Returns the rows of values, (n, codes), -1 for none.

        Args:
            private: the private row of each, counted from 0, or -1.
            codes: the learned codes of each, or -1.
            hashes: their hashes.
        """
        parts = self.parts
        ids = np.full((len(hashes), parts.codes), ABSENT, np.int64)
        known = codes[:, 0] != ABSENT
        keys = hashes.view(np.int64)
        unseen = 1 + parts.private + to_buckets(hash_integers(keys, seeded(_UNSEEN_SEED, parts.seed)), parts.unseen)
        first = parts.first_coded
        for number, rows in enumerate(parts.coded):
            ids[:, number] = np.where(known, first + codes[:, number], unseen if number == 0 else ABSENT)
            first += rows
        if parts.helper:
            helper = to_buckets(hash_integers(keys, seeded(_HELPER_SEED, parts.seed)), parts.helper)
            ids[:, -1] = first + helper
        is_private = private != ABSENT
        ids[is_private] = ABSENT
        ids[is_private, 0] = 1 + private[is_private]
        return ids

    def to_state(self) -> State:
        figures, arrays = self.map.to_state()
        parts = self.parts
        return {
            "name": self.name,
            "version": MAPPED_VERSION,
            "private": parts.private,
            "unseen": parts.unseen,
            "coded": list(parts.coded),
            "helper": parts.helper,
            **({"seed": parts.seed} if parts.seed else {}),
            "lineage": self.lineage,
            "map": figures,
            "map_bytes": self.map_bytes,
            **({"drift": self.drift} if self.drift else {}),
        }, {**arrays, **self.private.to_arrays("private")}

    @classmethod
    def from_state(cls, figures: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Self:
        name, lineage, drift = figures.get("name"), figures.get("lineage"), figures.get("drift", {})
        check_version(str(name), figures.get("version"), MAPPED_VERSION)
        what = f"{shorten(name)} encoder"
        coded, settings = figures.get("coded"), figures.get("map")
        if not isinstance(coded, list) or not 1 <= len(coded) <= _MOST_PARTS:
            raise DAMAGED.of(what, f"its codes are {shorten(coded)}")
        if name not in NAMES or not isinstance(settings, dict) or not isinstance(lineage, str):
            raise DAMAGED.of(what, "its name, map or lineage are missing")
        numbers = {f"code {number}": rows for number, rows in enumerate(coded)}
        parts = Parts(
            saved_integer(figures, "private", 0),
            saved_integer(figures, "unseen", 1),
            tuple(saved_integer(numbers, key, 1) for key in numbers),
            saved_integer(figures, "helper", 0),
            saved_integer(figures, "seed", 0) if "seed" in figures else 0,
        )
        private = HashedKeys.from_arrays(arrays, "private", what)
        if len(private) != parts.private:
            raise DAMAGED.of(what, f"has {parts.private:,} private rows and {len(private):,} values for them")
        if (
            not isinstance(drift, dict)
            or not all(isinstance(share, float) for share in drift.values())
            or (drift and drift.keys() not in _DRIFT)
        ):
            raise DAMAGED.of(what, f"drift is {shorten(drift)}; expected shares")
        found = restored_map(settings, arrays, parts.coded, what, parts.seed)
        restored = cls(name, parts, private, found, lineage, drift)
        if figures.get("map_bytes") != restored.map_bytes:
            raise DAMAGED.of(what, f"its map has {restored.map_bytes:,} bytes, not {shorten(figures.get('map_bytes'))}")
        return restored
