"""Locations of values in a config: their dotted paths, and the config classes that are allowed there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pydantic

Location = tuple[str | int, ...]
"""Keys and list positions from the top of a config down to a value."""

TAGS = ("name", "kind")
"""The keys that select a class of a union."""

IMPORT_KEY = "import"
"""The key that names a class outside the package in place of a tag."""

SECTION_TAG = "@section"
"""The tag of a section that stands beside plain values in a union; pydantic puts it into the locations of errors."""

IMPORTED: dict[str, type[pydantic.BaseModel]] = {}
"""Import reference -> its config class, of the parts from outside that this process has imported
(:func:`ziggurat.core.parts.imported_config`)."""


def display_path(kind: type[pydantic.BaseModel], values: Any, location: Sequence[str | int]) -> str:
    """Returns a location as a dotted path, such as ``features.genres.pooling``.

    An item of a list is shown by its name if no other item has the same name, otherwise by its position. In the path of
    the name itself it is shown by its position.

    Args:
        kind: the class of the whole config.
        values: the config as given.
        location: as :func:`without_tags` returns it.
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


def without_tags(values: Any, location: Sequence[str | int]) -> list[str | int]:
    """Returns ``location`` without the union tags that pydantic inserts but the user did not write."""
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
        elif step == SECTION_TAG or (isinstance(place, Mapping) and step in place.values()):
            continue
        seen.append(step)
    return seen


def keys_at(kind: type[pydantic.BaseModel], location: Sequence[str | int], values: Any = None) -> list[str]:
    """Returns the keys that the config classes at ``location`` accept, sorted."""
    candidates = classes_at(kind, location, values)
    return sorted({field.alias or key for each in candidates for key, field in each.model_fields.items()})


def tags_at(kind: type[pydantic.BaseModel], location: Sequence[str | int], discriminator: str) -> list[str]:
    """Returns the allowed values of ``discriminator`` at ``location``, which is that of a union of classes."""
    fields = [candidate.model_fields.get(discriminator) for candidate in classes_at(kind, location)]
    return [str(field.default) for field in fields if field is not None]


def classes_at(
    kind: type[pydantic.BaseModel], location: Sequence[str | int], values: Any = None
) -> list[type[pydantic.BaseModel]]:
    """Returns the config classes allowed at ``location``; if the value there is not a config, those that contain it.

    Args:
        kind: the class of the whole config.
        location: where to look, with or without union tags.
        values: the config as given, which may name classes from outside the package.
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


def is_importable(kind: type[pydantic.BaseModel]) -> bool:
    """Returns whether a config class is that of a part, in whose place one from outside the package can be named."""
    return isinstance(getattr(kind, "reference", None), property)


def config_classes(annotation: Any) -> list[type[pydantic.BaseModel]]:
    """Returns every config class in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [found for argument in getattr(annotation, "__args__", ()) for found in config_classes(argument)]


def _has_tag(kind: type[pydantic.BaseModel], tag: str | int) -> bool:
    """Returns whether ``tag`` selects this class in a union."""
    return any(key in kind.model_fields and kind.model_fields[key].default == tag for key in TAGS)


def _given_name(items: list[Any], position: int) -> str | None:
    """Returns the name by which ``--set`` can address an item; None if it has none, or it is ambiguous."""
    names = [cast("Mapping[str, Any]", item).get("name") if isinstance(item, Mapping) else None for item in items]
    name = names[position]
    fit = isinstance(name, str) and name and "." not in name and not name.lstrip("-").isdigit()
    return cast("str", name) if fit and names.count(name) == 1 else None


def _is_named(kind: type[pydantic.BaseModel]) -> bool:
    """Returns whether the user may choose ``name`` freely, because it is not a tag."""
    return "name" in kind.model_fields and kind.model_fields["name"].annotation is str
