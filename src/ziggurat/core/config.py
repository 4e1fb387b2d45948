"""The base of every config class, and how a bad key or value is explained.

The class that is built owns its config: ``class DLRM: class Config(ziggurat.core.Config)``. Configs are frozen, refuse
unknown keys with the nearest valid one, and are discriminated on ``name`` where several classes can stand in one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import pydantic

from ziggurat.core.errors import ConfigError, nearest, shorten


class Config(pydantic.BaseModel):
    """A frozen, strict-keyed pydantic model."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )


ConfigT = TypeVar("ConfigT", bound=Config)


def parse_config(kind: type[ConfigT], values: Mapping[str, Any], source: str = "config") -> ConfigT:
    """``values`` as a ``kind``.

    Raises:
        ConfigError: names every offending key by its dotted path, what was given, what is allowed, and the nearest key.
    """
    try:
        return kind.model_validate(dict(values))
    except pydantic.ValidationError as error:
        problems = [_explain(kind, values, cast("dict[str, Any]", item)) for item in error.errors(include_url=False)]
        raise ConfigError(
            f"{source}: {len(problems)} problem{'s' if len(problems) > 1 else ''}\n  " + "\n  ".join(problems),
            "correct the keys above; `ziggurat schema` prints every key with its type and default",
        ) from None


def set_by_path(values: dict[str, Any], path: str, value: Any) -> None:
    """Set ``values["a"]["b"]`` for the path ``a.b``; an integer step indexes a list.

    Raises:
        ConfigError: a step that goes through something that is neither a mapping nor a list.
    """
    *parents, last = path.split(".")
    place: Any = values
    for step in parents:
        if isinstance(place, list):
            place = _list_item(place, step, path)
        elif isinstance(place, dict):
            child = place.get(step)
            if child is None:
                child = place[step] = {}
            place = child
        else:
            raise ConfigError(f"--set {path}: {step!r} lies below {shorten(place)}, which has no keys")
    if isinstance(place, list):
        _list_item(place, last, path)
        place[int(last)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise ConfigError(f"--set {path}: {last!r} lies below {shorten(place)}, which has no keys")


def _list_item(items: list[Any], step: str, path: str) -> Any:
    """The element of a list that ``step`` names: a position, or the ``name`` of one of its mappings."""
    if step.lstrip("-").isdigit() and -len(items) <= int(step) < len(items):
        return items[int(step)]
    for item in items:
        if isinstance(item, dict) and item.get("name") == step:
            return item
    raise ConfigError(f"--set {path}: {step!r} is neither a position in a list of {len(items)} nor a name in it")


def _explain(kind: type[Config], values: Mapping[str, Any], item: dict[str, Any]) -> str:
    location = tuple(cast("Sequence[str | int]", item["loc"]))
    path = ".".join(str(step) for step in _visible(values, location))
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
            return f"{path}.{discriminator}: required key is missing"
        case "value_error":
            message = str(item["msg"]).removeprefix("Value error, ")
            return f"{path}: {message}" if path else message
        case _:
            return f"{path}: {item['msg']}; received {shorten(item.get('input'))}"


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


def _keys_at(kind: type[Config], location: Sequence[str | int]) -> list[str]:
    """The keys that the config class found by walking ``location`` down from ``kind`` accepts."""
    classes: list[Any] = [kind]
    for step in location:
        following: list[Any] = []
        for candidate in classes:
            if isinstance(candidate, type) and issubclass(candidate, Config):
                if step in candidate.model_fields:
                    following.extend(_config_classes(candidate.model_fields[str(step)].annotation))
                elif _has_tag(candidate, step):
                    following.append(candidate)
        classes = following or classes
    return sorted({key for candidate in classes for key in candidate.model_fields})


def _config_classes(annotation: Any) -> list[type[Config]]:
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    found: list[type[Config]] = []
    for argument in getattr(annotation, "__args__", ()):
        found.extend(_config_classes(argument))
    return found


def _has_tag(kind: type[Config], tag: str | int) -> bool:
    """Whether ``tag`` is what tells this class from the others of its union."""
    return any(key in kind.model_fields and kind.model_fields[key].default == tag for key in ("name", "kind"))
