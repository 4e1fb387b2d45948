"""Describes the problems of a config to the user: the dotted path, what was given, what is allowed."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import pydantic

from ziggurat.core.config_places import (
    IMPORT_KEY,
    TAGS,
    Location,
    classes_at,
    config_classes,
    display_path,
    is_importable,
    keys_at,
    tags_at,
    without_tags,
)
from ziggurat.core.errors import ZigguratError, nearest, shorten
from ziggurat.core.outside.importing import import_hint

MOST_LINES = 100
"""Most problems that are described."""
_NO_SECTION = ("dict_type", "model_type", "model_attributes_type")

_PLAIN_WORDS = {
    "tuple_type": "Input should be a list, as in [a, b]",
    **dict.fromkeys(_NO_SECTION, "Input should be a section with keys"),
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
    """Returns a message with one line for each of the first problems; those of values from ``--set`` are marked so.

    Args:
        kind: the class that rejected ``values``.
        values: the config as given.
        items: pydantic's errors.
        source: the file or other source of the values.
        overridden: locations in ``values`` that come from ``--set``.
    """
    lines: list[str] = []
    left_over: dict[Location, list[Location]] = {}
    all_overridden, shown = True, items[:MOST_LINES]
    for item in shown:
        location = tuple(cast("Sequence[str | int]", item["loc"]))
        place = tuple(without_tags(values, location))
        if item["type"] == "too_short" and any(
            len(other["loc"]) > len(location) and other["loc"][: len(location)] == location for other in shown
        ):
            continue  # pydantic counts only valid entries, and the invalid ones are reported by themselves
        switch = next((given for given in overridden if given[:-1] == place[:-1] and given[-1] in TAGS), None)
        if item["type"] == "extra_forbidden" and switch and place not in overridden:
            left_over.setdefault(switch, []).append(location)
            continue
        if item["type"].startswith("union_tag"):
            place = (*place, str(item["ctx"]["discriminator"]).strip("'"))
        line = _explain(kind, values, item, alone=len(items) == 1)
        if item["type"] == "missing" and switch:
            lines.append(f"{line} (with --set {display_path(kind, values, switch)})")
            continue
        if any(place[: len(given)] == given for given in overridden):
            lines.append(f"--set {line}")
            continue
        all_overridden = False
        within = [given for given in overridden if given[: len(place)] == place]
        if item["type"] == "value_error" and within:
            line += f" (with {', '.join('--set ' + display_path(kind, values, given) for given in within)})"
        lines.append(line)
    lines += [_other_class(kind, values, switch, locations) for switch, locations in left_over.items()]
    if all_overridden and len(lines) == 1:
        return lines[0]
    if len(items) > len(shown):  # each of them takes time to explain, and nobody reads so many
        return "\n  ".join([f"{source}: {len(items)} problems", *lines, f"and {len(items) - len(shown)} more"])
    count = f"{len(lines)} problem{'s' if len(lines) > 1 else ''}"
    return "\n  ".join([count if all_overridden else f"{source}: {count}", *lines])


def hint_for(items: Sequence[Mapping[str, Any]], source: str) -> str:
    """Returns what the user can do about the problems; for the arguments see :func:`describe_problems`."""
    imports = [item["ctx"] for item in items if item["type"] == "part_import"]
    hints = [import_hint(each["hint"], each["module"], each["alias"], source) for each in imports]
    error = _our_error(items[0]) if len(items) == 1 else None
    if error is not None and error.hint:
        return error.hint
    if len(imports) < len(items):
        hints.append("correct the keys above; `ziggurat schema` prints every key with its type and default")
    return "; ".join(dict.fromkeys(hints))


def _our_error(item: Mapping[str, Any]) -> ZigguratError | None:
    """Returns the error of ours that a validator raised, if it is the problem."""
    error = item.get("ctx", {}).get("error")
    return error if isinstance(error, ZigguratError) else None


def _explain(kind: type[pydantic.BaseModel], values: Mapping[str, Any], item: Mapping[str, Any], *, alone: bool) -> str:
    """Returns the line about a problem. The hint of an error of ours is in it unless the problem is the only one."""
    location = tuple(cast("Sequence[str | int]", item["loc"]))
    path = display_path(kind, values, without_tags(values, location))
    match item["type"]:
        case "extra_forbidden":
            allowed = keys_at(kind, location[:-1], values)
            close = nearest(str(location[-1]), allowed)
            hint = f"did you mean {close!r}?" if close else f"allowed: {', '.join(sorted(allowed))}"
            own = "" if close else _of_your_own(kind, location[:-1], values)
            return f"{path}: unknown key; {hint}{own}"
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
            allowed = ", ".join(tags_at(kind, location, discriminator))
            return f"{path}.{discriminator}: required key is missing; allowed: {allowed}"
        case "too_short":
            count = item["ctx"]["min_length"]
            needed = "one entry" if count == 1 else f"{count} entries"
            hint = _how_to_fill(kind, location)
            return f"{path}: needs at least {needed}; received {shorten(item.get('input'))}; {hint}"
        case "part_import":
            return f"{path}.{IMPORT_KEY}: {item['msg']}"
        case "value_error":
            error = _our_error(item)
            message = str(item["msg"]).removeprefix("Value error, ") if error is None else error.problem
            if error is not None and error.hint and not alone:
                message += f"; {error.hint}"
            return f"{path}: {message}" if path else message
        case _:
            message = _PLAIN_WORDS.get(item["type"], str(item["msg"])).format(**item.get("ctx", {}))
            if item["type"] in _NO_SECTION and len(classes_at(kind, location)) > 1:
                tag, allowed = next((tag, found) for tag in TAGS if (found := tags_at(kind, location, tag)))
                message += f", {tag} among them ({', '.join(allowed)})" + _of_your_own(kind, location, values)
            return f"{path}: {message}; received {shorten(item.get('input'))}"


def _of_your_own(kind: type[pydantic.BaseModel], location: Location, values: Mapping[str, Any]) -> str:
    """Returns how a class from outside the package is named at a location, if one can be; else an empty text."""
    if not any(is_importable(each) for each in classes_at(kind, location, values)):
        return ""
    place: Any = values
    for step in without_tags(values, location):
        if isinstance(place, Mapping):
            place = cast("Mapping[Any, Any]", place).get(step, place)
        elif isinstance(place, list):
            place = cast("list[Any]", place)[int(step)]
    if isinstance(place, Mapping) and IMPORT_KEY in place:
        return ""
    given = place if isinstance(place, str) and ":" in place else "MODULE:CLASS"
    return f'; a class of your own is named by {{{IMPORT_KEY}: "{given}"}}'


def _other_class(
    kind: type[pydantic.BaseModel], values: Mapping[str, Any], switch: Location, locations: Sequence[Location]
) -> str:
    """Returns the message about keys of another class than the one that ``--set`` selected at ``switch``."""
    place: Any = values
    for step in switch[:-1]:
        place = place[step]
    section, tag = cast("dict[str, Any]", place), str(switch[-1])
    fields = {key: field for found in classes_at(kind, locations[0][:-1]) for key, field in found.model_fields.items()}
    needed = [key for key, field in fields.items() if field.is_required()]
    whole = "".join(f", {key}: {json.dumps(section[key], default=str) if key in section else '…'}" for key in needed)
    strange, allowed = ", ".join(str(where[-1]) for where in locations), ", ".join(keys_at(kind, locations[0][:-1]))
    path, section_path = display_path(kind, values, switch), display_path(kind, values, switch[:-1])
    return (
        f"--set {path}={section[tag]}: {section[tag]!r} has no {strange}; allowed: {allowed}. "
        f"--set {section_path}='{{{tag}: {section[tag]}{whole}}}' replaces the whole section"
    )


def _how_to_fill(kind: type[pydantic.BaseModel], location: Location) -> str:
    """Returns how to fix an empty list: by a first entry of the right class, or by its default."""
    fields = [found.model_fields.get(str(location[-1])) for found in classes_at(kind, location[:-1])]
    field = next((found for found in fields if found is not None), None)
    if field is None:
        return "give one"
    if not field.is_required():
        return "leave the key out for its default"
    classes = config_classes(field.annotation)
    if not classes:
        return "give one"
    wanted = {key: entry for key, entry in classes[0].model_fields.items() if entry.is_required() or key in TAGS}
    example = ", ".join(f"{key}: {'…' if entry.is_required() else entry.default}" for key, entry in wanted.items())
    return f"give one, such as {{{example}}}"
