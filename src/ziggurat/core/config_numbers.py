"""Makes numbers in a config strict: pydantic would read ``true`` or ``"1"`` as 1; here both are rejected."""

from __future__ import annotations

from typing import Any, cast

from pydantic_core import CoreSchema, PydanticCustomError, core_schema


def with_real_numbers(schema: CoreSchema) -> CoreSchema:
    """Returns a config class's schema with a check before each int and float that is not strict already."""
    return cast("CoreSchema", _walk(schema))


def _walk(part: Any) -> Any:
    if isinstance(part, list):
        return [_walk(item) for item in cast("list[Any]", part)]
    if not isinstance(part, dict):
        return part
    schema = cast("dict[str, Any]", part)
    kind = schema.get("type")
    if not isinstance(kind, str):  # a mapping of fields by name, one of which may be called "type"
        return {name: _walk(field) for name, field in schema.items()}
    if kind == "function-before" and schema["function"]["function"] in _CHECKS.values():
        return schema  # a nested config class, whose numbers have been checked already
    if kind in _CHECKS and not schema.get("strict"):
        return core_schema.no_info_before_validator_function(_CHECKS[kind], cast("CoreSchema", schema))
    return {key: value if key in _NO_SCHEMAS else _walk(value) for key, value in schema.items()}


_NO_SCHEMAS = frozenset({"metadata", "default", "cls", "config", "serialization"})


def _whole_number(value: Any) -> Any:
    return _reject_flag_and_text(value, "a whole number")


def _number(value: Any) -> Any:
    return _reject_flag_and_text(value, "a number")


def _reject_flag_and_text(value: Any, wanted: str) -> Any:
    if isinstance(value, bool | str):
        raise PydanticCustomError("number_type", "Input should be {wanted}", {"wanted": wanted})
    return value


_CHECKS = {"int": _whole_number, "float": _number}
