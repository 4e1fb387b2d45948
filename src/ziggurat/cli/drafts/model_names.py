"""The names of the built-in models, without importing them: that would load torch, which takes seconds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import ziggurat

_NAME = re.compile(r'name: Literal\["(\w+)"\]')


def model_names() -> list[str]:
    """Returns the ``name`` of every model in ``models/build.py``, in the order of its list, read from the source."""
    package = Path(ziggurat.__file__).parent
    tree = ast.parse((package / "models" / "build.py").read_text(encoding="utf-8"))
    modules = {
        alias.name: str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    configs = [
        (node.lineno, node.col_offset, node.value.id)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "Config" and isinstance(node.value, ast.Name)
    ]
    names: list[str] = []
    for _, _, class_name in sorted(configs):
        path = package.parent / Path(*modules[class_name].split(".")).with_suffix(".py")
        found = _NAME.search(path.read_text(encoding="utf-8"))
        assert found is not None, path
        names.append(found.group(1))
    return names
