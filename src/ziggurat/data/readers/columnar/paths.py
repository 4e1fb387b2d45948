"""Addresses values inside nested columns by path: ``geo.lat``, ``basket.id``, ``attributes.colour``.

A path is the name of a column, followed by the names of fields, separated by dots. A field of a struct is a column of
its values; a field of a list of structs is a list; after a map comes one of its keys. Lists of lists become one list.
A name that exists as a whole takes precedence, so a column called ``a.b`` is never the field ``b`` of ``a``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from ziggurat.data.readers.arrow_compute import pc


@dataclass(frozen=True, slots=True)
class ColumnPath:
    """A column, or values inside one.

    Attributes:
        column: the top-level column.
        steps: the fields and keys that lead from it to the values.
        type: the Arrow type of :func:`take`'s result: a scalar, or a flat list of scalars.
        stored: the beginning of the path that only goes through structs, joined by dots: what must be read of a file
            whose format reads single fields.
    """

    column: str
    steps: tuple[str, ...]
    type: pa.DataType
    stored: str

    def take(self, batch: pa.RecordBatch) -> pa.Array:
        """Returns the values of ``batch``, one for each row; those inside a missing object are missing."""
        return take_steps(batch, (self.column, *self.steps))


def take_steps(batch: pa.RecordBatch, steps: Sequence[str]) -> pa.Array:
    """Returns the values that a column, and fields and keys after it, lead to."""
    column, *deeper = steps
    return plain_lists(_descend(batch.column(batch.schema.get_field_index(column)), tuple(deeper)))


def steps_type(schema: pa.Schema, steps: Sequence[str]) -> pa.DataType:
    """Returns the type of :func:`take_steps`' result for structs and lists of structs."""
    column, *deeper = steps
    kind = schema.field(column).type
    return plain_list_type(_type_below(kind, tuple(deeper)))


def _type_below(kind: pa.DataType, steps: tuple[str, ...]) -> pa.DataType:
    if not steps:
        return kind
    if is_list(kind):
        return pa.list_(_type_below(kind.value_type, steps))
    return _type_below(kind.field(steps[0]).type, steps[1:])


def resolve(schema: pa.Schema, name: str) -> ColumnPath | None:
    """Returns the path that ``name`` means in a schema; None if there is none, or a column on it occurs twice."""
    for column, rest in splits(name):
        if len(schema.get_all_field_indices(column)) != 1:
            continue
        kind = schema.field(column).type
        found = ((), kind) if not rest else _resolve(kind, rest)
        if found is not None:
            steps, leaf = found
            return ColumnPath(column, steps, plain_list_type(leaf), ".".join((column, *_struct_steps(kind, steps))))
    return None


def check_names(schema: pa.Schema) -> None:
    """Validates that all names are UTF-8.

    Raises:
        UnicodeDecodeError: a name, at any depth, is not.
    """
    pending = [schema.field(index) for index in range(len(schema))]
    while pending:
        field = pending.pop()
        kind = field.type
        assert isinstance(field.name, str)
        if pt.is_nested(kind):
            pending += [kind.field(index) for index in range(kind.num_fields)]


def splits(name: str) -> Iterator[tuple[str, str]]:
    """Yields the ways to divide a path after its first name, the longest first name first."""
    yield name, ""
    end = len(name)
    while (end := name.rfind(".", 0, end)) != -1:
        yield name[:end], name[end + 1 :]


def storage_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type in which values of an extension type are stored, and that of run-end encoded values.

    So it is for a dictionary of nested values or of an extension type, whose values are copied to their rows.
    """
    while isinstance(kind, pa.BaseExtensionType) or pt.is_run_end_encoded(kind) or _is_nested_dictionary(kind):
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind.value_type
    return kind


def _is_nested_dictionary(kind: pa.DataType) -> bool:
    """Whether values are a dictionary of others than plain numbers, times or text."""
    if not pt.is_dictionary(kind):
        return False
    inner = kind.value_type
    return isinstance(inner, pa.BaseExtensionType) or pt.is_nested(inner) or pt.is_dictionary(inner)


def replaced_types(kind: pa.DataType, replace: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Returns a type whose innermost types, at any depth, are those that ``replace`` gives for them."""
    if pt.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([field.with_type(replaced_types(field.type, replace)) for field in fields])
    if pt.is_map(kind):
        item = kind.item_field.with_type(replaced_types(kind.item_type, replace))
        return pa.map_(replaced_types(kind.key_type, replace), item)
    if not (pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)):
        return replace(kind)
    value = kind.value_field.with_type(replaced_types(kind.value_type, replace))
    if pt.is_fixed_size_list(kind):
        return pa.list_(value, kind.list_size)
    return pa.large_list(value) if pt.is_large_list(kind) else pa.list_(value)


def takeable_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type of :func:`takeable`."""
    return replaced_types(kind.value_type if pt.is_run_end_encoded(kind) else kind, _without_view)


def takeable(cells: pa.Array) -> pa.Array:
    """Returns cells of which rows can be taken, which the library does neither of views of text nor of runs."""
    if pt.is_run_end_encoded(cells.type):
        cells = pc.run_end_decode(cells)
    wanted = takeable_type(cells.type)
    return cells if cells.type == wanted else cells.cast(wanted)


def _without_view(kind: pa.DataType) -> pa.DataType:
    if pt.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pt.is_binary_view(kind) else kind


def is_period(field: pa.Field) -> bool:
    """Whether a column holds periods of pandas, such as months; Arrow stores counts of them."""
    kind = field.type
    name = kind.extension_name if isinstance(kind, pa.BaseExtensionType) else None
    return _PERIODS in (name, (field.metadata or {}).get(b"ARROW:extension:name", b"").decode("utf-8", "replace"))


_PERIODS = "pandas.period"


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists, of any length or of a fixed one."""
    return (
        pt.is_list(kind)
        or pt.is_large_list(kind)
        or pt.is_fixed_size_list(kind)
        or pt.is_list_view(kind)
        or pt.is_large_list_view(kind)
    )


def plain_list_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type of :func:`plain_lists`."""
    kind = storage_type(kind)
    if not is_list(kind):
        return kind
    inner = plain_list_type(kind.value_type)
    if is_list(inner):
        return pa.list_(inner.value_type)
    return kind if inner == kind.value_type and not _is_view(kind) else pa.list_(inner)


def plain_lists(cells: pa.Array) -> pa.Array:
    """Returns cells without extension types and views, with lists of lists as one list."""
    cells = _stored(cells)
    wanted = plain_list_type(cells.type)
    if cells.type == wanted:
        return cells
    return _grouped(cells, plain_lists(cells.flatten()))


def _resolve(kind: pa.DataType, rest: str) -> tuple[tuple[str, ...], pa.DataType] | None:
    kind = storage_type(kind)
    if is_list(kind):
        found = _resolve(kind.value_type, rest)
        return None if found is None else (found[0], pa.list_(found[1]))
    for name, deeper in splits(rest):
        if pt.is_struct(kind) and len(kind.get_all_field_indices(name)) == 1:
            inner = kind.field(name).type
        elif pt.is_map(kind) and is_key(kind.key_type):
            inner = kind.item_type
            if not deeper and pt.is_struct(storage_type(inner)):
                continue  # any key could exist: the fields of the object come after it
        else:
            continue
        if not deeper:
            return (name,), inner
        found = _resolve(inner, deeper)
        if found is not None:
            return (name, *found[0]), found[1]
    return None


def is_key(kind: pa.DataType) -> bool:
    """Whether the keys of a map are text."""
    return pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind)


def _struct_steps(kind: pa.DataType, steps: tuple[str, ...]) -> Iterator[str]:
    for step in steps:
        if not pt.is_struct(kind):
            return
        yield step
        kind = kind.field(step).type


def _descend(cells: pa.Array, steps: tuple[str, ...]) -> pa.Array:
    cells = _stored(cells)
    if not steps:
        return cells
    if is_list(cells.type):
        return _grouped(cells, plain_lists(_descend(cells.flatten(), steps)))
    step, *deeper = steps
    if pt.is_map(cells.type):
        key = pa.scalar(step, cells.type.key_type)
        return _descend(pc.map_lookup(cells, query_key=key, occurrence="first"), tuple(deeper))
    index = cells.type.get_field_index(step)
    return _descend(pc.struct_field(cells, [index]), tuple(deeper))


def _stored(cells: pa.Array) -> pa.Array:
    while True:
        if isinstance(cells, pa.ExtensionArray):
            cells = cells.storage
        elif pt.is_run_end_encoded(cells.type):
            cells = pc.run_end_decode(cells)
        elif _is_nested_dictionary(cells.type):
            cells = takeable(_stored(cells.dictionary)).take(cells.indices)
        else:
            return cells


def _is_view(kind: pa.DataType) -> bool:
    return pt.is_list_view(kind) or pt.is_large_list_view(kind)


def _grouped(lists: pa.Array, elements: pa.Array) -> pa.Array:
    """Returns lists of ``elements``, one for each element of ``lists.flatten()``; lists among them are joined.

    Lists may be views: :meth:`flatten` gives their elements in the order of the rows. (The library's casts of views to
    lists give other elements, or crash.)
    """
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    if is_list(elements.type):
        inner = pc.list_value_length(elements).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        bounds = np.concatenate([[0], np.cumsum(inner)])[bounds]
        elements = elements.flatten()
    absent = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), elements, mask=absent)
