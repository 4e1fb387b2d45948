"""Splits a Python file into units of code that can be compared across moves and renames.

A unit is a function, a method, a class without its methods, or a statement at the top of a module. What counts as code
in it is defined by :mod:`bench.code_shape`. Names are kept apart from the rest: two units of the same *shape* are the
same code if their names mean the same.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from bench.code_shape import (
    ERROR_NAME,
    MODULE_NAME,
    Function,
    Shape,
    TextRemover,
    has_no_effect,
    is_own_import,
    library_imports,
)

MODULE_STATEMENTS = "<module>"
"""The name of the units that define no name."""


@dataclass(frozen=True, slots=True)
class Import:
    """An import of one of our own modules.

    Attributes:
        module: the dotted name of the module.
        name: the name imported from it; empty for ``import module``.
        bound: the name that the import binds.
    """

    module: str
    name: str
    bound: str


@dataclass(frozen=True)
class Unit:
    """A piece of code that is compared as a whole.

    Attributes:
        name: the qualified name within its module (``Loader.epoch``); ``<module>`` for statements that define no name.
        shape: SHA-256 of the syntax tree, in which placeholders replace names and local variables are numbered.
        names: the names that placeholders replace, in order.
        variables: the local variables in order of first appearance.
        defines: the names that other code may refer to, in order: its own, its parameters, the attributes it assigns.
        mentions: the names that occur in it, with their attributes (``files.sync``); and, in quotes, strings that name
            modules (``"ziggurat.core.files"``) or, if ``getattr`` is used, strings that could be names (``"sync"``).
    """

    name: str
    shape: str
    names: tuple[str, ...]
    variables: tuple[str, ...]
    defines: tuple[str, ...]
    mentions: frozenset[str]

    @property
    def top(self) -> str:
        """The top-level definition that the unit belongs to."""
        return self.name.partition(".")[0]

    @cached_property
    def exact(self) -> str:
        """SHA-256 of shape and names, which is equal for equal code."""
        return hashlib.sha256(repr((self.shape, self.names, self.variables)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Module:
    """A file's units and imports.

    Attributes:
        units: the units, in the order of the file.
        imports: the imports of our own modules, including those inside functions.
        libraries: the imports of other packages at the top of the file, each as the bound name and the source text.
    """

    units: tuple[Unit, ...]
    imports: tuple[Import, ...]
    libraries: tuple[tuple[str, str], ...]


def parse(source: str) -> Module:
    """Splits a Python file into units."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, Function):
            node.returns = None
    units: list[Unit] = []
    libraries: list[tuple[str, str]] = []
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            libraries += library_imports(statement)
        else:
            units += _units_of(statement, "")
    return Module(tuple(units), _own_imports(tree), tuple(libraries))


def _units_of(statement: ast.stmt, prefix: str) -> Iterator[Unit]:
    """Yields the units of a statement at the top of a module, or in a class whose qualified name is ``prefix``."""
    if has_no_effect(statement):
        return
    if isinstance(statement, ast.ClassDef):
        yield from _class_units(statement, prefix)
    elif isinstance(statement, Function):
        own = [name for name in _parameters(statement) if name not in ("self", "cls")]
        yield _unit(prefix + statement.name, [statement], _local_variables(statement), [statement.name, *own])
    else:
        targets = _targets(statement)
        if targets == ["__all__"]:
            return
        yield _unit(
            prefix + (targets[0] if targets else MODULE_STATEMENTS), [statement], _inner_variables(statement), targets
        )


def _class_units(node: ast.ClassDef, prefix: str) -> Iterator[Unit]:
    name = prefix + node.name
    if any(isinstance(base, ast.Name) and ERROR_NAME.search(base.id) for base in node.bases):
        TextRemover().visit(node)
    head: list[ast.AST] = [*node.decorator_list, *node.bases, *node.keywords]
    fields = [each for each in node.body if not isinstance(each, Function | ast.ClassDef) and not has_no_effect(each)]
    variables = {variable for part in (*head, *fields) for variable in _inner_variables(part)}
    defined = [target for field in fields for target in _targets(field)]
    yield _unit(name, [*head, *fields], variables, [node.name, *defined], annotated=True)
    for each in node.body:
        if isinstance(each, Function | ast.ClassDef):
            yield from _units_of(each, f"{name}.")


def _unit(
    name: str, nodes: Sequence[ast.AST], variables: set[str], defines: Iterable[str], annotated: bool = False
) -> Unit:
    shape = Shape(variables, annotated)
    for node in nodes:
        shape.visit(node)
    assigned = [
        node.attr
        for root in nodes
        for node in ast.walk(root)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]
    return Unit(
        name,
        hashlib.sha256("\n".join(shape.tokens).encode()).hexdigest(),
        tuple(shape.names),
        tuple(shape.variables),
        tuple(dict.fromkeys([*defines, *assigned])),
        _all_mentions(nodes),
    )


def _targets(statement: ast.stmt) -> list[str]:
    """Returns the names that a statement assigns."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]


def _parameters(function: Function | ast.Lambda) -> list[str]:
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return [each.arg for each in given if each is not None]


def _local_variables(function: Function) -> set[str]:
    """Returns the local variables of a function and of the functions inside it."""
    bound, outer = set(_parameters(function)), set[str]()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.Global):
            outer.update(node.names)
        elif isinstance(node, Function | ast.ClassDef) and node is not function:
            bound.add(node.name)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name is not None:
            bound.add(node.name)
        if isinstance(node, Function | ast.Lambda):
            bound.update(_parameters(node))
    return bound - outer


def _inner_variables(node: ast.AST) -> set[str]:
    """Returns the variables of comprehensions, lambdas and functions inside a statement of a module or a class."""
    bound: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.comprehension):
            bound.update(name.id for name in ast.walk(each.target) if isinstance(name, ast.Name))
        elif isinstance(each, ast.Lambda):
            bound.update(_parameters(each))
        elif isinstance(each, Function):
            bound |= _local_variables(each)
    return bound


def _all_mentions(nodes: Sequence[ast.AST]) -> frozenset[str]:
    """Returns the mentions of a unit; strings that could be names count only if names are looked up by strings."""
    found = {mention for node in nodes for mention in _mentions(node)}
    if found & {"getattr", "importlib.import_module", "import_module"}:
        return frozenset(found)
    return frozenset(mention for mention in found if not mention.startswith('"') or "." in mention)


def _mentions(root: ast.AST) -> Iterator[str]:
    """Yields the names in a syntax tree outside ``raise``, as functions that only errors mention do not count."""
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Raise):
            continue
        pending.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            chain = _chain(node)
            if chain is not None:
                yield chain
        elif isinstance(node, ast.Constant) and _could_be_name(node.value):
            yield f'"{node.value}"'


def _could_be_name(value: object) -> bool:
    return isinstance(value, str) and (value.isidentifier() or MODULE_NAME.fullmatch(value) is not None)


def _chain(node: ast.expr) -> str | None:
    """Returns ``a.b.c`` for attributes of a name, or None for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    before = _chain(node.value) if isinstance(node, ast.Attribute) else None
    return f"{before}.{node.attr}" if isinstance(node, ast.Attribute) and before is not None else None


def _own_imports(tree: ast.Module) -> tuple[Import, ...]:
    imports: dict[Import, None] = {}
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if has_no_effect(node):
            continue
        pending.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if is_own_import(node, alias):
                    imports[Import(node.module or "", alias.name, alias.asname or alias.name)] = None
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if is_own_import(node, alias):
                    imports[Import(alias.name, "", alias.asname or alias.name.partition(".")[0])] = None
    return tuple(imports)
