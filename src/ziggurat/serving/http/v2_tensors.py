"""Tensors of the Open Inference Protocol, in JSON or binary, and the raw columns that they are.

Each raw column is a tensor with a row for each row of the request. A column of single values has the shape [B] or
[B, 1], a column of lists or vectors [B, N], or [B] of BYTES, each a list in JSON (``[3, 17]``) or as in the training
files (``3|17``). In a BYTES tensor an empty element is a missing value, in FP32 and FP64 NaN is.

Shape legend: B rows.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.errors import shorten
from ziggurat.core.schema import RawColumn, ValueType
from ziggurat.serving.http.json_body import check_rows, wrong_field
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.refusals import HttpRefused

DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
Array = npt.NDArray[Any] | list[Any]


def datatype(column: RawColumn) -> str:
    """Returns the datatype in which a column is described."""
    if column.many or column.type in {ValueType.TEXT, ValueType.TIME}:
        return "BYTES"
    return "INT64" if column.type is ValueType.INTEGER else "FP64"


def shape(column: RawColumn) -> list[int]:
    """Returns the shape in which a column is described; -1 stands for B."""
    return [-1] if column.vector is None else [-1, column.vector.length]


def read_tensor(
    entry: Mapping[str, Any], column: RawColumn, where: str, binary: memoryview, limits: ServingLimits
) -> tuple[list[Any] | pa.Array, memoryview]:
    """Returns the values of a tensor, one for each row, and the binary data of the tensors after it.

    Args:
        entry: the tensor's entry of ``inputs``.
        column: its column.
        where: how messages name it.
        binary: the binary data from its first byte on.
        limits: the bounds of its shape.

    Raises:
        HttpRefused: it is no valid tensor, or too large.
    """
    kind, dims = entry.get("datatype"), _shape(entry, where)
    if dims[0]:
        check_rows(dims[0], where, limits)
    most = limits.ids_per_row if column.vector is None else max(limits.ids_per_row, column.vector.length)
    if len(dims) == 2 and dims[1] > most:
        problem = f"{where}: each row holds {dims[1]:,} values; {most:,} are allowed"
        hint = "send the last ones, or start the server with a larger --max-ids-per-row"
        raise HttpRefused(422, "too_many_ids", problem, hint)
    if kind != "BYTES" and kind not in DTYPES:
        raise wrong_field(f"{where}.datatype", kind, f"one of BYTES, {', '.join(DTYPES)}")
    count = math.prod(dims)
    parameters = entry.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise wrong_field(f"{where}.parameters", parameters, "an object")
    size = cast("dict[str, Any]", parameters).get("binary_data_size")
    if size is not None:
        if "data" in entry:
            raise HttpRefused(400, "invalid_tensor", f"{where}: has data and binary_data_size", "give one of both")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(binary):
            raise wrong_field(
                f"{where}.parameters.binary_data_size", size, f"a number of bytes, of which {len(binary):,} are left"
            )
        values = _of_bytes(cast("str", kind), binary[:size], count, where)
        binary = binary[size:]
    else:
        values = _of_json(cast("str", kind), entry.get("data"), dims, where)
    if kind == "FP16":
        values = np.asarray(values, np.float32)
    is_list = column.many or column.vector is not None
    return _column(values, dims, is_list, where), binary


def _shape(entry: Mapping[str, Any], where: str) -> list[int]:
    dims = entry.get("shape")
    is_shape = isinstance(dims, list) and 1 <= len(cast("list[Any]", dims)) <= 2
    if not is_shape or not all(
        isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 2**31 for each in cast("list[Any]", dims)
    ):
        raise wrong_field(f"{where}.shape", dims, "[B] or [B, N], of whole numbers")
    return cast("list[int]", dims)


def _of_bytes(kind: str, data: memoryview, count: int, where: str) -> Array:
    if kind != "BYTES":
        width = np.dtype(DTYPES[kind]).itemsize
        if len(data) != width * count:
            raise HttpRefused(
                400, "invalid_tensor", f"{where}: has {len(data):,} bytes; its shape needs {width * count:,}"
            )
        return np.frombuffer(data, np.dtype(DTYPES[kind]).newbyteorder("<"))
    found: list[Any] = []
    at = 0
    while at < len(data) and len(found) <= count:
        if at + 4 > len(data):
            break
        size = struct.unpack_from("<I", data, at)[0]
        if at + 4 + size > len(data):
            break
        found.append(_text(bytes(data[at + 4 : at + 4 + size]), where, len(found)))
        at += 4 + size
    if at != len(data) or len(found) != count:
        problem = f"{where}: its bytes are not {count:,} elements, each after its length in 4 bytes"
        raise HttpRefused(400, "invalid_tensor", problem)
    return found


def _of_json(kind: str, data: Any, dims: list[int], where: str) -> Array:
    if not isinstance(data, list):
        raise wrong_field(f"{where}.data", data, "an array, or parameters.binary_data_size")
    flat, count = cast("list[Any]", data), math.prod(dims)
    is_nested = 0 < len(flat) <= max(dims[0], count) and all(isinstance(each, list) for each in flat)
    received = sum(map(len, flat)) if is_nested else len(flat)
    if received != count:
        raise HttpRefused(400, "invalid_tensor", f"{where}: has {received:,} values; its shape needs {count:,}")
    if is_nested:
        flat = list(itertools.chain.from_iterable(cast("list[list[Any]]", flat)))
    if kind == "BYTES":
        for number, value in enumerate(flat):
            if value is not None and not isinstance(value, str):
                raise wrong_field(f"{where}.data[{number}]", value, "text, as the datatype BYTES says")
        return [value or None for value in flat]
    allowed = (bool,) if kind == "BOOL" else (int, float) if kind.startswith("FP") else (int,)
    for number, value in enumerate(flat):
        is_fine = isinstance(value, allowed) and (kind == "BOOL" or not isinstance(value, bool))
        if value is not None and not is_fine:
            raise wrong_field(f"{where}.data[{number}]", value, f"a value of the datatype {kind}")
    if kind != "FP16" and any(value is None for value in flat):
        return flat
    try:
        with np.errstate(over="ignore"):
            values = np.array(flat, DTYPES[kind])
    except OverflowError:
        values = None
    if values is None or (kind.startswith("FP") and np.isinf(values).any()):  # JSON has no infinity
        raise HttpRefused(400, "invalid_tensor", f"{where}.data: holds a value that {kind} cannot hold")
    return values


def _text(data: bytes, where: str, number: int) -> str | None:
    try:
        return data.decode() or None
    except UnicodeDecodeError:
        problem = f"{where}, element {number}: received {shorten(data)}, which is no UTF-8 text"
        raise HttpRefused(422, "invalid_tensor", problem) from None


def _column(values: Array, dims: list[int], is_list: bool, where: str) -> list[Any] | pa.Array:
    if len(dims) == 1 or (dims[1] == 1 and not is_list):
        if isinstance(values, list):
            return _unfolded(values, where) if is_list else values
        return pa.array(values, from_pandas=True)
    width = dims[1]
    if isinstance(values, list):
        return (
            [values[start : start + width] for start in range(0, dims[0] * width, width)] if width else [[]] * dims[0]
        )
    if not width:
        return [[]] * dims[0]
    return pa.FixedSizeListArray.from_arrays(pa.array(values, from_pandas=True), width).cast(
        pa.list_(pa.from_numpy_dtype(values.dtype))
    )


def _unfolded(values: list[Any], where: str) -> list[Any]:
    """Returns texts with the lists that are written as JSON in place of the text, if all texts are."""
    texts = [value for value in values if value is not None]
    if not texts or not all(isinstance(value, str) and value.startswith("[") for value in texts):
        return values
    try:
        found = [None if value is None else msgspec.json.decode(value, type=list[Any]) for value in values]
    except (msgspec.DecodeError, RecursionError):
        return values  # it is text that begins with a bracket
    if any(isinstance(item, list | dict) for row in found if row for item in row):
        raise HttpRefused(422, "invalid_tensor", f"{where}: holds lists within lists", "send plain lists")
    return found
