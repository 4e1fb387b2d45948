"""Imports what ``MODULE:CLASS`` names, and says where it was looked for and what was found instead."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ziggurat.core.errors import nearest
from ziggurat.core.outside.failures import described, own_lines

_FORM = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class CannotImport(Exception):
    """A reference that names nothing.

    Args:
        problem: what is wrong.
        hint: what the user can do about it.
        module: the top-level module that was not found, if that is what is wrong.
        alias: the statement that would give a class that was found its old name, if a name is what is missing.
    """

    def __init__(self, problem: str, hint: str, module: str = "", alias: str = "") -> None:
        super().__init__(problem)
        self.problem, self.hint, self.module, self.alias = problem, hint, module, alias


def import_named(reference: Any) -> Any:
    """Returns what ``MODULE:CLASS`` names.

    The working directory is searched after the installed packages, so that a module in it is found.

    Raises:
        CannotImport: the reference is malformed, the module is not found or fails, or has no such name.
    """
    module_name, attribute = _parsed(reference)
    working_folder = str(Path.cwd())
    if working_folder not in sys.path:
        sys.path.append(working_folder)
    found: Any = _module(module_name)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise _lacks(module_name, found, name)
        found = getattr(found, name)
    return found


def import_hint(hint: str, module: str, alias: str, source: str) -> str:
    """Returns what the user can do about a reference that cannot be imported.

    Args:
        hint, module, alias: those of :class:`CannotImport`.
        source: the config that names it. If the module is in its folder or above that, the folder is stated; if it is
            the config of a run, the hint says how a part is renamed that a run was trained with.
    """
    path = Path(source)
    of_run = path.name == _RUN_CONFIG and (path.parent / _RUN_ENVIRONMENT).exists()
    hints = [hint] if hint and not of_run else []
    if module:
        folders = [*path.absolute().parents][:4] if path.is_file() else []
        there = [each for each in folders if (each / module).is_dir() or (each / f"{module}.py").is_file()]
        hints.append(
            f"it is in {there[0]}: run the command there, or set PYTHONPATH={there[0]}"
            if there
            else f"run the command in the folder that holds {module}, or set PYTHONPATH to that folder, or install the "
            "package (`pip install -e FOLDER`)"
        )
    if of_run:
        hints.append(
            "if it was renamed or moved after this run was trained, leave the old name where it was: "
            + (f"`{alias}`" if alias else "a module of the old name that imports the class from the new one")
        )
    return "; ".join(hints)


_RUN_CONFIG, _RUN_ENVIRONMENT = "config.yaml", "environment.json"
"""Two files that a run folder has."""


def _parsed(reference: Any) -> tuple[str, str]:
    module, separator, attribute = reference.partition(":") if isinstance(reference, str) else ("", "", "")
    if separator and _FORM.fullmatch(module) and _FORM.fullmatch(attribute):
        return module, attribute
    problem = f"expected MODULE:CLASS, as in my_package.my_module:MyClass; received {reference!r}"
    if not isinstance(reference, str):
        raise CannotImport(problem, "write the reference as text")
    dotted = module.strip().removesuffix(".py").strip("./").replace("/", ".")
    before, _, last = dotted.rpartition(".")
    if not attribute and before and last[:1].isupper():
        dotted, attribute = before, last
    likely = f"{dotted}:{attribute or 'CLASS'}" if _FORM.fullmatch(dotted) else ""
    raise CannotImport(problem, f"write it as in {likely or 'my_package.my_module:MyClass'}")


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if missing == name or name.startswith(f"{missing}."):
            raise _not_found(missing) from None
        raise CannotImport(
            f"{name} imports {missing!r}, which is not found{_at(error)}",
            f"install it into this environment ({sys.prefix}), or correct that import",
        ) from None
    except Exception as error:
        raise CannotImport(
            f"{name} fails while it is imported: {described(error)}{_at(error)}",
            f"correct that code; `python -c 'import {name}'` shows the whole traceback",
        ) from error


def _not_found(name: str) -> CannotImport:
    """Returns the error for a module, or a part of a package, that does not exist."""
    package, _, last = name.rpartition(".")
    if package:
        inside = sys.modules.get(package)
        modules = _submodules(inside)
        close = nearest(last, modules)
        what = f"there is no module {name!r}: {_file(inside)} "
        what += f"has {', '.join(sorted(modules)[:8])}" if modules else "has no modules"
        return CannotImport(
            what + (f"; did you mean {package}.{close}?" if close else ""),
            "correct the name" if _hidden(package) is None else f"{_hidden(package)} is not reached; rename it",
        )
    here = [each.name for each in pkgutil.iter_modules([str(Path.cwd())])]
    here += [each.name for each in Path.cwd().iterdir() if each.is_dir() and any(each.glob("*.py"))]
    close = nearest(name, here)
    where = f"it is looked for among the installed packages and below {Path.cwd()}"
    return CannotImport(
        f"there is no module {name!r}; {where}" + (f"; did you mean {close!r}?" if close else ""),
        "correct the name" if close else "",
        name,
    )


def _lacks(module_name: str, found: Any, name: str) -> CannotImport:
    """Returns the error for a module or class without the name."""
    names = [each for each in vars(found) if not each.startswith("_")] if hasattr(found, "__dict__") else []
    close = nearest(name, names)
    file = _file(sys.modules.get(module_name))
    problem = f"{module_name} ({file}) has no {name!r}" + (f"; did you mean {close!r}?" if close else "")
    hidden = _hidden(module_name)
    if hidden is not None:
        return CannotImport(
            problem, f"{hidden} is not reached, as another module of its name is found first; rename it"
        )
    classes = [
        each for each in names if isinstance(vars(found)[each], type) and vars(found)[each].__module__ == module_name
    ]
    has = f"the module has {', '.join(sorted(classes)[:8])}; " if classes and not close else ""
    return CannotImport(problem, f"{has}correct the name", alias=f"{name} = {close or 'NewName'}")


def _hidden(module_name: str) -> Path | None:
    """Returns the module's file in the working directory if Python found another one."""
    root = module_name.partition(".")[0]
    found = getattr(sys.modules.get(root), "__file__", None)
    for own in (Path.cwd() / f"{root}.py", Path.cwd() / root / "__init__.py"):
        if own.is_file() and (found is None or own.resolve() != Path(found).resolve()):
            return own
    return None


def _submodules(package: ModuleType | None) -> list[str]:
    return [each.name for each in pkgutil.iter_modules(getattr(package, "__path__", []))]


def _file(module: ModuleType | None) -> str:
    file = getattr(module, "__file__", None)
    return str(file or next(iter(getattr(module, "__path__", [])), "built into Python"))


def _at(error: BaseException) -> str:
    lines = own_lines(error.__traceback__)
    return "".join(f"\n  {line}" for line in lines[-2:])
