"""Where in a config a value lies: down from the top, past the tags of unions, to the classes that may stand there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pydantic

Location = tuple[str | int, ...]
"""Keys and list positions from the top of a config down to a value."""

TAGS = ("name", "kind")
"""The keys that tell the classes of a union apart."""

IMPORT_KEY = "import"
"""The key that names a class outside the package in place of a tag."""

IMPORTED: dict[str, type[pydantic.BaseModel]] = {}
"""Import reference -> its config class, of the parts from outside that this process has imported
(:func:`ziggurat.core.parts.imported_config`)."""


def shown(kind: type[pydantic.BaseModel], values: Any, location: Sequence[str | int]) -> str:
    """``features.genres.pooling``: dotted, an item of a list by the name that it alone in the list was given.

    By its position where its name is what is spoken of.

    Args:
        kind: the class of the whole config.
        values: the config as given.
        location: as :func:`visible` returns it.
    """
    steps: list[str] = []
    place = values
    for position, step in enumerate(location):
        steps.append(str(step))
        if isinstance(place, list) and isinstance(step, int) and step < len(cast("list[Any]", place)):
            name = _given_name(cast("list[Any]", place), step)
            named = any(_is_named(item) for item in classes_at(kind, location[: position + 1]))
            if name is not None and named and tuple(location[position + 1 :]) != ("name",):
                steps[-1] = name
            place = cast("list[Any]", place)[step]
        elif isinstance(place, Mapping):
            place = cast("Mapping[Any, Any]", place).get(step)
    return ".".join(steps)


def visible(values: Any, location: Sequence[str | int]) -> list[str | int]:
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


def keys_at(kind: type[pydantic.BaseModel], location: Sequence[str | int], values: Any = None) -> list[str]:
    """The keys that the config class found by walking ``location`` down from ``kind`` accepts."""
    return sorted({key for candidate in classes_at(kind, location, values) for key in candidate.model_fields})


def tags_at(kind: type[pydantic.BaseModel], location: Sequence[str | int], discriminator: str) -> list[str]:
    """What ``discriminator`` may be at ``location``, where several classes can stand."""
    fields = [candidate.model_fields.get(discriminator) for candidate in classes_at(kind, location)]
    return [str(field.default) for field in fields if field is not None]


def classes_at(
    kind: type[pydantic.BaseModel], location: Sequence[str | int], values: Any = None
) -> list[type[pydantic.BaseModel]]:
    """The config classes that may stand at ``location``; below a value of no config class, those around it.

    Args:
        kind: the class of the whole config.
        location: where to look, with or without union tags.
        values: the config as given, which says where a class from outside the package was named.
    """
    classes, place = [kind], values
    for step in location:
        following = [candidate for candidate in classes if len(classes) > 1 and _has_tag(candidate, step)]
        if not following:
            fields = [candidate.model_fields.get(str(step)) for candidate in classes]
            following = [found for field in fields if field is not None for found in config_classes(field.annotation)]
        if isinstance(place, Mapping) and step in place:
            place = cast("Mapping[Any, Any]", place)[step]
        elif isinstance(place, list) and isinstance(step, int) and step < len(cast("list[Any]", place)):
            place = cast("list[Any]", place)[step]
        if isinstance(place, Mapping):
            named = IMPORTED.get(str(cast("Mapping[Any, Any]", place).get(IMPORT_KEY)))
            following = [named] if named is not None else following
        classes = following or classes
    return classes


def config_classes(annotation: Any) -> list[type[pydantic.BaseModel]]:
    """Every config class within a type."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [found for argument in getattr(annotation, "__args__", ()) for found in config_classes(argument)]


def _has_tag(kind: type[pydantic.BaseModel], tag: str | int) -> bool:
    """Whether ``tag`` is what tells this class from the others of its union."""
    return any(key in kind.model_fields and kind.model_fields[key].default == tag for key in TAGS)


def _given_name(items: list[Any], position: int) -> str | None:
    """What ``--set`` may call an item; None where that would be no step of a key, or say another item."""
    names = [cast("Mapping[str, Any]", item).get("name") if isinstance(item, Mapping) else None for item in items]
    name = names[position]
    fit = isinstance(name, str) and name and "." not in name and not name.lstrip("-").isdigit()
    return cast("str", name) if fit and names.count(name) == 1 else None


def _is_named(kind: type[pydantic.BaseModel]) -> bool:
    """Whether ``name`` is free for the user to choose, and no tag."""
    return "name" in kind.model_fields and kind.model_fields["name"].annotation is str
