"""What a service around an ONNX model usually has by hand: raw rows to arrays, by dictionaries.

Shape legend: B rows, F dense features, L ids of a row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Record = Mapping[str, Any]
Arrays = dict[str, Any]


class Encoding:
    """Encodes rows with the vocabularies of a folder.

    Args:
        folder: holds ``encoding.json``.
    """

    def __init__(self, folder: Path) -> None:
        found = json.loads((folder / "encoding.json").read_text())
        self.dense: list[dict[str, Any]] = found["dense"]
        self.ids: list[dict[str, Any]] = found["ids"]
        for each in self.ids:
            each["map"] = dict(each.pop("values"))
        self.labels: list[str] = found["labels"]

    def rows(self, rows: Sequence[Record]) -> Arrays:
        """Returns the arrays of rows: dense (B, F), ids (B,), and ids of lists (B, L), padded with -1."""
        return {**self._dense([rows] * len(self.dense), len(rows)), **self._ids(rows, self.ids)}

    def ranked(self, context: Record, candidates: Sequence[Record]) -> Arrays:
        """Returns the arrays of candidates for one context, whose values are encoded once."""
        size = len(candidates)
        sources = [[context] * size if each["column"] in context else candidates for each in self.dense]
        mine = [each for each in self.ids if each["column"] in context]
        others = [each for each in self.ids if each["column"] not in context]
        shared = {name: np.repeat(values, size, axis=0) for name, values in self._ids([context], mine).items()}
        return {**self._dense(sources, size), **shared, **self._ids(candidates, others)}

    def _dense(self, sources: Sequence[Sequence[Record]], size: int) -> Arrays:
        dense_BF = np.empty((size, len(self.dense)), np.float32)
        for number, (each, rows) in enumerate(zip(self.dense, sources, strict=True)):
            values = np.array([row[each["column"]] for row in rows], np.float64)
            dense_BF[:, number] = values * each["scale"] + each["shift"]
        return {"dense": dense_BF}

    def _ids(self, rows: Sequence[Record], features: Sequence[Mapping[str, Any]]) -> Arrays:
        found: Arrays = {}
        for each in features:
            ids, unknown, column = each["map"], each["unknown"], each["column"]
            if not each["many"]:
                found[each["name"]] = np.array([ids.get(row[column], unknown) for row in rows], np.int64)
                continue
            lists = [[ids.get(value, unknown) for value in row[column]] for row in rows]
            longest = max(1, max(map(len, lists)))
            found[each["name"]] = np.array([each + [-1] * (longest - len(each)) for each in lists], np.int64)
        return found
