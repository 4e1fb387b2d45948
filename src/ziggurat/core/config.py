"""The base of every config class, and the functions that parse values into one.

The class that is built owns its config: ``class DLRM: class Config(ziggurat.core.Config)``. Configs are frozen. They
reject unknown keys and suggest the nearest valid one. A union of config classes is discriminated on ``name``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, TypeVar, cast

import pydantic
from pydantic_core import CoreSchema

from ziggurat.core.config_numbers import with_real_numbers
from ziggurat.core.config_places import IMPORT_KEY, Location
from ziggurat.core.config_problems import describe_problems, hint_for
from ziggurat.core.errors import ConfigError, shorten
from ziggurat.core.untrusted import Damage, parse_yaml


class Config(pydantic.BaseModel):
    """A frozen, strict-keyed pydantic model.

    A number must be a number: ``true`` and ``"1"`` are rejected; 1e6 is accepted as an int, and 1 as a float. A section
    without a tag that selects its class (``optimizer: {lr: 0.1}``) is of the class that is the default.

    Attributes:
        NEWER: keys that were added to the class after datasets had been prepared with it; see
            :func:`established_values`.
    """

    NEWER: ClassVar[frozenset[str]] = frozenset()

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[pydantic.BaseModel], handler: pydantic.GetCoreSchemaHandler
    ) -> CoreSchema:
        """Returns pydantic's schema of the class, in which every int and float rejects booleans and text."""
        return with_real_numbers(handler(source))

    @pydantic.model_validator(mode="before")
    @classmethod
    def _default_class_of_sections(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        filled = dict(cast("Mapping[str, Any]", values))
        for name, field in cls.model_fields.items():
            tag, section = field.discriminator, filled.get(name)
            if (
                isinstance(tag, str)
                and isinstance(section, Mapping)
                and tag not in section
                and IMPORT_KEY not in section
            ):
                default = field.get_default(call_default_factory=True, validated_data={})
                if isinstance(default, Config):
                    filled[name] = {tag: getattr(default, tag), **section}
        return filled


ConfigT = TypeVar("ConfigT", bound=Config)


def established_values(config: Config) -> dict[str, Any]:
    """Returns the values as JSON, without the ``NEWER`` keys that have their defaults.

    A fingerprint of these values stays what it was when such a key is added, so that what was prepared before stays
    valid.
    """
    return _established(config, config.model_dump(mode="json"))


def _established(value: Any, plain: Any) -> Any:
    """Returns ``plain``, the JSON of ``value``, without newer keys that have their defaults."""
    if isinstance(value, Config) and isinstance(plain, dict) and IMPORT_KEY not in plain:
        return {
            field.alias or name: _established(getattr(value, name), plain[field.alias or name])
            for name, field in type(value).model_fields.items()
            if not (name in value.NEWER and _is_default(value, name))
        }
    if isinstance(value, tuple | list):
        items = cast("tuple[Any, ...] | list[Any]", value)
        return [_established(each, one) for each, one in zip(items, plain, strict=True)]
    return plain


def _is_default(config: Config, name: str) -> bool:
    field = type(config).model_fields[name]
    return getattr(config, name) == field.get_default(call_default_factory=True, validated_data={})


def parse_config(
    kind: type[ConfigT], values: Mapping[str, Any], source: str = "config", overridden: Collection[Location] = ()
) -> ConfigT:
    """Parses ``values`` into a config of the class ``kind``.

    Args:
        kind: the config class.
        values: the values as read from YAML or JSON.
        source: where the values come from, for the message.
        overridden: locations in ``values`` that come from ``--set`` instead, as :func:`set_by_path` returned them.

    Raises:
        ConfigError: the message lists every offending key by its dotted path, with what was given, what is allowed, and
            the nearest valid key.
    """
    try:
        return kind.model_validate(dict(values))
    except pydantic.ValidationError as error:
        items = cast("list[dict[str, Any]]", error.errors(include_url=False))
        hint = hint_for(items, source)
        raise ConfigError(describe_problems(kind, values, items, source, overridden), hint) from None


def key_and_value(override: str) -> tuple[str, Any]:
    """Returns the key of an override ``a.b=c``, and its value parsed as YAML.

    Raises:
        ConfigError: it is no ``KEY=VALUE``, or the value is empty or not YAML.
    """
    key, separator, text = (part.strip() for part in override.partition("="))
    if not separator or not key:
        raise ConfigError(f"--set {override}: expected KEY=VALUE", "for example --set training.batch_size=8192")
    if not text:
        raise ConfigError(
            f"--set {override}: the value is empty",
            f"give one, or {key}=null for none, or {key}='\"\"' for an empty text; leave --set out for the default",
        )
    damage = Damage(ConfigError, "quote it: --set 'a.b=\"text\"'")
    return key, parse_yaml(text.encode("utf-8", "surrogatepass"), f"--set {shorten(override)}", damage)


def set_by_path(values: dict[str, Any], path: str, value: Any) -> Location:
    """Sets ``values["a"]["b"]`` for the path ``a.b``. A step into a list is a position or the name of an item.

    Returns:
        The location of the value: the steps, with names of items replaced by positions.

    Raises:
        ConfigError: a step goes through a value that is neither a mapping nor a list.
    """
    *parents, last = path.split(".")
    if not all((*parents, last)):
        raise ConfigError(f"--set {path}: a step of the key is empty", "write it as in training.batch_size=8192")
    place: Any = values
    location: list[str | int] = []
    for step in parents:
        if isinstance(place, dict) and place.get(step) is None:
            place[step] = {}
        key = _key(place, step, path)
        location.append(key)
        place = place[key]
    key = _key(place, last, path)
    place[key] = value
    return (*location, key)


def _key(place: Any, step: str, path: str) -> str | int:
    """Returns the key that ``step`` means in ``place``.

    In a mapping it is ``step`` itself. In a list it is the position that ``step`` states, or that of the item with this
    ``name``.
    """
    if isinstance(place, dict):
        return step
    if not isinstance(place, list):
        raise ConfigError(
            f"--set {path}: {step!r} lies below {shorten(place)}, which has no keys", "shorten the key, or correct it"
        )
    items = cast("list[Any]", place)
    if step.lstrip("-").isdigit() and -len(items) <= int(step) < len(items):
        return int(step) % len(items)
    for position, item in enumerate(items):
        if isinstance(item, dict) and item.get("name") == step:
            return position
    names = [str(item["name"]) for item in items if isinstance(item, dict) and "name" in item]
    raise ConfigError(
        f"--set {path}: {step!r} is neither a position in a list of {len(items)} nor a name in it",
        f"names in it: {', '.join(names)}" if names else f"positions are 0 to {len(items) - 1}",
    )
