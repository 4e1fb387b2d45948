"""Parts of an experiment that the config selects: models, blocks, encoders, heads, planners, optimizers.

Each kind of part has a base config, a :class:`PartConfig`, whose subclasses build the part. The union of the built-in
configs is written out where the kind is defined, for the type checker and for the reader. :class:`Importable` also
allows a config to name a class outside this package::

    model: {import: my_package.my_module:MyModel, width: 64}

The named class has a nested ``Config`` derived from the kind's base config; its keys are checked like those of built-in
parts. Naming a class runs the code of its module, as any import does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast, get_args

import pydantic
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from ziggurat.core.config import Config
from ziggurat.core.config_places import IMPORT_KEY, IMPORTED
from ziggurat.core.errors import ConfigError, shorten
from ziggurat.core.outside.failures import called
from ziggurat.core.outside.importing import CannotImport, import_named

MadeT = TypeVar("MadeT")

IMPORT_ERROR = "part_import"
"""The type of pydantic errors about what ``import`` names."""


class PartConfig(Config):
    """The base config of one kind of part.

    A subclass in this package has a ``name``, which selects it in its union. A subclass from outside needs none: its
    import reference selects it.
    """

    _reference: str | None = pydantic.PrivateAttr(default=None)

    @property
    def title(self) -> str:
        """The part's name for messages: its import reference, or its ``name``."""
        return self._reference or str(getattr(self, "name", type(self).__qualname__))

    @property
    def reference(self) -> str | None:
        """``MODULE:CLASS`` for a part from outside the package, else None."""
        return self._reference

    def checked_part(self, make: Callable[[], Any], kind: type[MadeT], by: str = "build") -> MadeT:
        """Returns what ``make`` returns: the part, built by a method of this config.

        A part from outside the package is an error that names it if it is not of the kind that its users expect.

        Args:
            make: calls the method.
            kind: the class that the part must be of.
            by: the method's name.

        Raises:
            ConfigError: the method raised an exception of its own, or returned something else.
        """
        if self._reference is None:
            return make()
        found = called(self.title, by, make, defined=getattr(type(self), by))
        if not isinstance(found, kind):
            received = "None" if found is None else f"a {type(found).__qualname__}"
            raise ConfigError(
                f"{self.title}: {by} returned {received}, expected a {public_name(kind)}",
                f"return the part at the end of `{by}`"
                if found is None
                else f"derive the part from {public_name(kind)}",
            )
        return found


PartT = TypeVar("PartT", bound=PartConfig)

_NOUNS: dict[type[PartConfig], str] = {}
"""The base config of each kind that a config may import -> what the kind is called."""


@dataclass(frozen=True, slots=True)
class Importable:
    """Annotates a union of part configs: a section with the key ``import`` names a class outside the package.

    Attributes:
        base: the base config of the kind.
        noun: what the kind is called in messages, such as ``model``.
    """

    base: type[PartConfig]
    noun: str

    def __post_init__(self) -> None:
        _NOUNS[self.base] = self.noun

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        def validate(value: Any, inner: core_schema.ValidatorFunctionWrapHandler) -> Any:
            if isinstance(value, self.base) and value.reference is not None:
                return value
            if not isinstance(value, Mapping) or IMPORT_KEY not in value:
                return inner(value)
            section = dict(cast("Mapping[str, Any]", value))
            reference = section.pop(IMPORT_KEY)
            imported = imported_config(reference, self.base, self.noun)
            if "name" in section and "name" not in imported.model_fields:
                raise _error(
                    f"has both name ({shorten(section['name'])}) and import ({reference}), which exclude each other",
                    f"leave name out for a part from outside, or import for a built-in {self.noun}",
                )
            config = imported.model_validate(section)
            config._reference = str(reference)  # pyright: ignore[reportPrivateUsage]  (of our own base class)
            return config

        def serialise(
            value: Any, inner: core_schema.SerializerFunctionWrapHandler, info: core_schema.SerializationInfo
        ) -> Any:
            if not isinstance(value, PartConfig) or value.reference is None:
                return inner(value)
            return {IMPORT_KEY: value.reference, **value.model_dump(mode=info.mode)}

        return core_schema.no_info_wrap_validator_function(
            validate,
            handler(source),
            serialization=core_schema.wrap_serializer_function_ser_schema(serialise, info_arg=True),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: pydantic.GetJsonSchemaHandler) -> Any:
        inner = cast("Any", schema)["schema"]
        outside = {
            "title": f"{article(self.noun).capitalize()} from outside the package",
            "type": "object",
            "required": [IMPORT_KEY],
            "properties": {
                IMPORT_KEY: {
                    "type": "string",
                    "pattern": r"^[\w.]+:[\w.]+$",
                    "description": f"MODULE:CLASS; the other keys are those of the class's Config ({self.noun}).",
                }
            },
        }
        return {"anyOf": [handler(inner), outside]}


def imported_config(reference: Any, base: type[PartT], noun: str) -> type[PartT]:
    """Imports the part that ``reference`` names, and returns its config class.

    The working directory is searched after the installed packages, so that a module in it is found.

    Args:
        reference: ``MODULE:CLASS``, where the class has a nested ``Config`` or is one itself.
        base: the base config that it must be derived from.
        noun: what the kind of part is called in messages.

    Raises:
        PydanticCustomError: the reference is malformed, cannot be imported, or names something else.
    """
    try:
        found = import_named(reference)
    except CannotImport as error:
        raise _error(error.problem, error.hint, error.module, error.alias) from error.__cause__
    config: Any = found if isinstance(found, type) and issubclass(found, PartConfig) else getattr(found, "Config", None)
    if not (isinstance(config, type) and issubclass(config, base)):
        raise _error(*_of_another_kind(reference, found, config, base, noun))
    missing = sorted(getattr(config, "__abstractmethods__", ()))
    if missing:
        raise _error(f"{reference}: its Config lacks {', '.join(missing)}", f"define it as {public_name(base)} does")
    IMPORTED[cast("str", reference)] = config
    return config


def _of_another_kind(reference: Any, found: Any, config: Any, base: type[PartConfig], noun: str) -> tuple[str, str]:
    """Returns problem and hint for what is no class, or whose ``Config`` is not one of the kind that is wanted."""
    mro = config.__mro__ if isinstance(config, type) else ()
    other = next((_NOUNS[each] for each in mro if each in _NOUNS), None)
    wanted = public_name(base)
    if other is not None:
        return (
            f"{reference} is {article(other)}, not {article(noun)}",
            f"name {article(noun)} here; the table in docs/extending.md says where a config names each kind of part",
        )
    module, _, name = wanted.rpartition(".")
    if not isinstance(found, type):
        return (
            f"{reference} is {article(type(found).__name__)}, not a class",
            f"name a class that has a nested class Config, derived from {wanted}",
        )
    if config is None:
        return (
            f"{reference} is not {article(noun)}: it has no nested class Config",
            f"give it one: `class Config({name})`, with `from {module} import {name}`",
        )
    return (
        f"{reference} is not {article(noun)}: its nested class Config must be derived from {wanted}",
        f"write `class Config({name})`, with `from {module} import {name}`",
    )


def public_name(kind: type) -> str:
    """Returns the name by which authors of parts import a class, in ``ziggurat.extension`` if it is one of ours."""
    if kind.__module__.partition(".")[0] == __name__.partition(".")[0]:
        return f"ziggurat.extension.{kind.__qualname__}"
    steps = kind.__module__.split(".")
    modules = [".".join(steps[:count]) for count in range(1, len(steps) + 1)]
    public = (each for each in modules if getattr(sys.modules.get(each), kind.__name__, None) is kind)
    return f"{next(public, kind.__module__)}.{kind.__qualname__}"


def article(noun: str) -> str:
    """Returns the noun with its indefinite article."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def built_in(union: Any, base: type[PartT]) -> tuple[type[PartT], ...]:
    """Returns the config classes, derived from ``base``, in an annotated union, in its order."""
    return get_args(get_args(union)[0])


def built_in_names(union: Any) -> tuple[str, ...]:
    """Returns the ``name`` of each config class in an annotated union, in its order."""
    return tuple(str(each.model_fields["name"].default) for each in built_in(union, PartConfig))


def _error(problem: str, hint: str, module: str = "", alias: str = "") -> PydanticCustomError:
    context = {"problem": problem, "hint": hint, "module": module, "alias": alias}
    return PydanticCustomError(IMPORT_ERROR, "{problem}", context)
