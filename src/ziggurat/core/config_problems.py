"""What is wrong with a config, in the user's words: the dotted path, what was given, what is allowed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import pydantic

from ziggurat.core.errors import nearest, shorten

Location = tuple[str | int, ...]
"""Keys and list positions from the top of a config down to a value."""

_PLAIN_WORDS = {
    "tuple_type": "Input should be a list, as in [a, b]",
    "dict_type": "Input should be a section with keys",
    "model_type": "Input should be a section with keys",
    "model_attributes_type": "Input should be a section with keys",
    "bool_parsing": "Input should be true or false",
    "bool_type": "Input should be true or false",
    "string_type": "Input should be text, a number in quotes for one",
    "string_pattern_mismatch": "Input should match {pattern}",
    "int_from_float": "Input should be a whole number",
    "float_type": "Input should be a number",
    "int_type": "Input should be a whole number",
}


def describe_problems(
    kind: type[pydantic.BaseModel],
    values: Mapping[str, Any],
    items: Sequence[Mapping[str, Any]],
    source: str,
    overridden: Collection[Location],
) -> str:
    """One line a problem, under where they come from; what ``--set`` gave is marked so.

    Args:
        kind: the class that refused ``values``.
        values: as given.
        items: pydantic's errors.
        source: the file, or what else held the values.
        overridden: places in ``values`` that come from ``--set``.
    """
    lines: list[str] = []
    all_overridden = True
    for item in items:
        place = tuple(_visible(values, tuple(cast("Sequence[str | int]", item["loc"]))))
        if item["type"].startswith("union_tag"):
            place = (*place, str(item["ctx"]["discriminator"]).strip("'"))
        line = _explain(kind, values, item)
        if any(place[: len(given)] == given for given in overridden):
            lines.append(f"--set {line}")
            continue
        all_overridden = False
        within = [given for given in overridden if given[: len(place)] == place]
        if item["type"] == "value_error" and within:
            line += f" (with {', '.join('--set ' + dotted(given) for given in within)})"
        lines.append(line)
    if all_overridden and len(lines) == 1:
        return lines[0]
    count = f"{len(lines)} problem{'s' if len(lines) > 1 else ''}"
    return "\n  ".join([count if all_overridden else f"{source}: {count}", *lines])


def dotted(location: Sequence[str | int]) -> str:
    """``training.batch_size``."""
    return ".".join(str(step) for step in location)


def _explain(kind: type[pydantic.BaseModel], values: Mapping[str, Any], item: Mapping[str, Any]) -> str:
    location = tuple(cast("Sequence[str | int]", item["loc"]))
    path = dotted(_visible(values, location))
    match item["type"]:
        case "extra_forbidden":
            allowed = _keys_at(kind, location[:-1])
            close = nearest(str(location[-1]), allowed)
            hint = f"did you mean {close!r}?" if close else f"allowed: {', '.join(sorted(allowed))}"
            return f"{path}: unknown key; {hint}"
        case "missing":
            return f"{path}: required key is missing"
        case "union_tag_invalid":
            context = item["ctx"]
            allowed = [tag.strip().strip("'") for tag in str(context["expected_tags"]).split(",")]
            close = nearest(str(context["tag"]), allowed)
            hint = f"did you mean {close!r}? " if close else ""
            discriminator = str(context["discriminator"]).strip("'")
            return f"{path}.{discriminator}: unknown {context['tag']!r}; {hint}allowed: {', '.join(allowed)}"
        case "union_tag_not_found":
            discriminator = str(item["ctx"]["discriminator"]).strip("'")
            allowed = ", ".join(_tags_at(kind, location, discriminator))
            return f"{path}.{discriminator}: required key is missing; allowed: {allowed}"
        case "value_error":
            message = str(item["msg"]).removeprefix("Value error, ")
            return f"{path}: {message}" if path else message
        case _:
            message = _PLAIN_WORDS.get(item["type"], str(item["msg"])).format(**item.get("ctx", {}))
            return f"{path}: {message}; received {shorten(item.get('input'))}"


def _visible(values: Any, location: Sequence[str | int]) -> list[str | int]:
    """``location`` without the union tags that pydantic inserts but the user never wrote."""
    seen: list[str | int] = []
    place = values
    for position, step in enumerate(location):
        last = position == len(location) - 1
        if isinstance(place, Mapping) and step in place:
            place = place[step]
        elif isinstance(place, list) and isinstance(step, int) and step < len(place):
            place = place[step]
        elif not last:
            continue
        elif isinstance(place, Mapping) and step in place.values():
            continue
        seen.append(step)
    return seen


def _keys_at(kind: type[pydantic.BaseModel], location: Sequence[str | int]) -> list[str]:
    """The keys that the config class found by walking ``location`` down from ``kind`` accepts."""
    return sorted({key for candidate in _classes_at(kind, location) for key in candidate.model_fields})


def _tags_at(kind: type[pydantic.BaseModel], location: Sequence[str | int], discriminator: str) -> list[str]:
    """What ``discriminator`` may be at ``location``, where several classes can stand."""
    fields = [candidate.model_fields.get(discriminator) for candidate in _classes_at(kind, location)]
    return [str(field.default) for field in fields if field is not None]


def _classes_at(kind: type[pydantic.BaseModel], location: Sequence[str | int]) -> list[type[pydantic.BaseModel]]:
    classes = [kind]
    for step in location:
        following: list[type[pydantic.BaseModel]] = []
        for candidate in classes:
            if step in candidate.model_fields:
                following.extend(_config_classes(candidate.model_fields[str(step)].annotation))
            elif _has_tag(candidate, step):
                following.append(candidate)
        classes = following or classes
    return classes


def _config_classes(annotation: Any) -> list[type[pydantic.BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [found for argument in getattr(annotation, "__args__", ()) for found in _config_classes(argument)]


def _has_tag(kind: type[pydantic.BaseModel], tag: str | int) -> bool:
    """Whether ``tag`` is what tells this class from the others of its union."""
    return any(key in kind.model_fields and kind.model_fields[key].default == tag for key in ("name", "kind"))
