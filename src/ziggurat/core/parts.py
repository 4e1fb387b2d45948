"""Parts of an experiment that the config selects: models, blocks, encoders, heads, planners, optimizers.

Each kind of part has a base config, a :class:`PartConfig`, whose subclasses build the part. The union of the built-in
configs is written out where the kind is defined, for the type checker and for the reader. :class:`Importable` also
allows a config to name a class outside this package::

    model: {import: my_package.my_module:MyModel, width: 64}

The named class has a nested ``Config`` derived from the kind's base config; its keys are checked like those of built-in
parts. Naming a class runs the code of its module, as any import does.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import pydantic
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from ziggurat.core.config import Config
from ziggurat.core.config_places import IMPORT_KEY, IMPORTED
from ziggurat.core.errors import nearest

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


PartT = TypeVar("PartT", bound=PartConfig)


@dataclass(frozen=True, slots=True)
class Importable:
    """Annotates a union of part configs: a section with the key ``import`` names a class outside the package.

    Attributes:
        base: the base config of the kind.
        noun: what the kind is called in messages, such as ``model``.
    """

    base: type[PartConfig]
    noun: str

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        def validate(value: Any, inner: core_schema.ValidatorFunctionWrapHandler) -> Any:
            if isinstance(value, self.base) and value.reference is not None:
                return value
            if not isinstance(value, Mapping) or IMPORT_KEY not in value:
                return inner(value)
            section = dict(cast("Mapping[str, Any]", value))
            reference = section.pop(IMPORT_KEY)
            config = imported_config(reference, self.base, self.noun).model_validate(section)
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
            "title": f"A {self.noun} from outside the package",
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

    The working directory is searched after the installed packages, so that a module next to the config file is found.

    Args:
        reference: ``MODULE:CLASS``, where the class has a nested ``Config`` or is one itself.
        base: the base config that it must be derived from.
        noun: what the kind of part is called in messages.

    Raises:
        PydanticCustomError: the reference is malformed, cannot be imported, or names something else.
    """
    module_name, separator, attribute = reference.partition(":") if isinstance(reference, str) else ("", "", "")
    if not separator or not module_name or not attribute:
        raise _error("expected MODULE:CLASS, as in my_package.my_module:MyClass; received {received}", repr(reference))
    working_folder = str(Path.cwd())
    if working_folder not in sys.path:
        sys.path.append(working_folder)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = f"there is no module {error.name!r}"
        where = f"it is looked for among the installed packages and below {working_folder}"
        raise _error("{received}", f"{missing}; {where}") from None
    except Exception as error:
        raise _error(
            "{received}", f"{module_name} fails while it is imported: {type(error).__name__}: {error}"
        ) from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            close = nearest(name, [each for each in vars(found) if not each.startswith("_")])
            raise _error(
                "{received}", f"{module_name} has no {name!r}" + (f"; did you mean {close!r}?" if close else "")
            )
        found = getattr(found, name)
    config: Any = found if isinstance(found, type) and issubclass(found, PartConfig) else getattr(found, "Config", None)
    if not (isinstance(config, type) and issubclass(config, base)):
        wanted = f"{base.__module__}.{base.__qualname__}"
        raise _error("{received}", f"{reference} is no {noun}: its nested class Config must be derived from {wanted}")
    missing = sorted(getattr(config, "__abstractmethods__", ()))
    if missing:
        raise _error("{received}", f"{reference}: its Config lacks {', '.join(missing)}")
    IMPORTED[cast("str", reference)] = config
    return config


def built_in(union: Any, base: type[PartT]) -> tuple[type[PartT], ...]:
    """Returns the config classes, derived from ``base``, in an annotated union, in its order."""
    return get_args(get_args(union)[0])


def built_in_names(union: Any) -> tuple[str, ...]:
    """Returns the ``name`` of each config class in an annotated union, in its order."""
    return tuple(str(each.model_fields["name"].default) for each in built_in(union, PartConfig))


def _error(template: str, received: str) -> PydanticCustomError:
    return PydanticCustomError(IMPORT_ERROR, cast("Any", template), {"received": received})
