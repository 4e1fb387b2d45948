"""Compares the schema in a dataset's manifest with the fitted transform, from which it follows."""

from __future__ import annotations

from collections.abc import Mapping

from ziggurat.core.errors import shorten
from ziggurat.core.schema import Schema
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.manifest import DAMAGED, MANIFEST_FILE
from ziggurat.features.assemble import encoded_schema
from ziggurat.features.saved_transform import SavedTransform


def check_schema(dataset: Dataset, saved: SavedTransform, table_rows: Mapping[str, int] | None = None) -> None:
    """Checks that a dataset's schema is that of its transform.

    Args:
        dataset: the dataset.
        saved: its transform, or a run's copy of it.
        table_rows: the number of rows of each table in the dataset's statistics, if it has any.

    Raises:
        DataError: it is another; the message names the manifest and what differs.
    """
    found, path = dataset.schema, dataset.folder / MANIFEST_FILE
    for table, count in found.rows.items():
        if table_rows is not None and table_rows.get(table) != count:
            known = table_rows.get(table, "none")
            raise DAMAGED.of(path, f"schema: table {table!r} has {count} rows, and {known} in the statistics")
    inputs = encoded_schema(saved.features, saved.targets, _Rows(found.rows), saved.labels)
    for name in Schema.__slots__:
        theirs, ours = getattr(found, name), getattr(inputs, name)
        if theirs != ours and not (name == "levels" and not saved.labels):
            raise DAMAGED.of(
                path,
                f"schema: {name} is {shorten(_plain(theirs))}, and that of the transform in {saved.folder} is "
                f"{shorten(_plain(ours))}",
            )


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


class _Rows(dict[str, int]):
    """The rows of tables; 0 for a table that is not there."""

    def __missing__(self, table: str) -> int:
        return 0
