"""The code of one Python file, apart from how it is written down: units that can be compared across moves and renames.

A unit is a function, a method, a class without its methods, or a statement at the top of a module. Comments,
docstrings, formatting, annotations of functions and variables, and text for people (error messages, notes, help) are
left out of it. Names are kept apart from the rest: two units of one *shape* do the same if their names mean the same.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

OWN_PACKAGES = ("ziggurat", "bench")
"""Packages whose modules count as sources; the name of any other module is part of the code."""

_MODULE = re.compile(rf"(?:{'|'.join(OWN_PACKAGES)})(?:\.\w+)+")
_PATH = re.compile(r"(?:src/ziggurat|bench|tests|examples|docs|tools)(?:/[\w.-]+)+")
_PROSE = re.compile(r"[A-Za-z]+[,;:.]? [A-Za-z]+")
_NO_PROSE = re.compile(r"[<>{}\n]")
_ERROR = re.compile(r"(?:Error|Exception|Warning|Mismatch)$")
_SPEAKING = {"print", "say", "note", "warn"}
"""Functions whose arguments are shown to people and decide nothing."""
_SPEAKING_KEYWORDS = {"help", "description"}
_OUTSIDE_MEASUREMENT = {"claim", "targets", "depends_on"}
"""Keywords of ``Benchmark(...)`` that can change without another measurement."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Import:
    """An import of a module of ours.

    Attributes:
        module: dotted.
        name: what is imported from it; empty for ``import module``.
        bound: the name that it gets here.
    """

    module: str
    name: str
    bound: str


@dataclass(frozen=True)
class Unit:
    """A piece of code that is compared as a whole.

    Attributes:
        name: within its module, ``Loader.epoch``; ``<module>`` for statements that define no name.
        shape: SHA-256 of the syntax tree, with a mark in the place of every name; local variables are numbered.
        names: the names at these marks, in order, local variables left out.
        variables: local variables in order of first appearance.
        defines: names that other code may refer to, in order: its own, its parameters, the attributes that it assigns.
        mentions: names that occur in it, with their attributes (``files.sync``), and in quotes strings that
            name modules (``"ziggurat.core.files"``) or, where ``getattr`` is used, could be names (``"sync"``).
    """

    name: str
    shape: str
    names: tuple[str, ...]
    variables: tuple[str, ...]
    defines: tuple[str, ...]
    mentions: frozenset[str]

    @property
    def top(self) -> str:
        """The top-level definition that it belongs to."""
        return self.name.partition(".")[0]

    @cached_property
    def exact(self) -> str:
        """SHA-256 of shape and names: equal for equal code."""
        return hashlib.sha256(repr((self.shape, self.names, self.variables)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Module:
    """A file's units and imports.

    Attributes:
        units: in the order of the file.
        imports: of modules of ours, those inside functions included.
        libraries: imports of other packages at the top of the file: the name that it gets here, and the source text.
    """

    units: tuple[Unit, ...]
    imports: tuple[Import, ...]
    libraries: tuple[tuple[str, str], ...]


ALWAYS = "<module>"


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
            libraries += _library_imports(statement)
        else:
            units += _units_of(statement, "")
    return Module(tuple(units), _own_imports(tree), tuple(libraries))


def _units_of(statement: ast.stmt, prefix: str) -> Iterator[Unit]:
    """The units of a statement at the top of a module, or in a class whose qualified name is ``prefix``."""
    if _is_silent(statement):
        return
    if isinstance(statement, ast.ClassDef):
        yield from _class_units(statement, prefix)
    elif isinstance(statement, Function):
        own = [name for name in _parameters(statement) if name not in ("self", "cls")]
        yield _unit(prefix + statement.name, [statement], _bound(statement), [statement.name, *own])
    else:
        targets = _targets(statement)
        if targets == ["__all__"]:
            return
        yield _unit(prefix + (targets[0] if targets else ALWAYS), [statement], _bound_inside(statement), targets)


def _class_units(node: ast.ClassDef, prefix: str) -> Iterator[Unit]:
    name = prefix + node.name
    if any(isinstance(base, ast.Name) and _ERROR.search(base.id) for base in node.bases):
        _Silencer().visit(node)
    head: list[ast.AST] = [*node.decorator_list, *node.bases, *node.keywords]
    fields = [each for each in node.body if not isinstance(each, Function | ast.ClassDef) and not _is_silent(each)]
    bound = {variable for part in (*head, *fields) for variable in _bound_inside(part)}
    defined = [target for field in fields for target in _targets(field)]
    yield _unit(name, [*head, *fields], bound, [node.name, *defined], annotated=True)
    for each in node.body:
        if isinstance(each, Function | ast.ClassDef):
            yield from _units_of(each, f"{name}.")


def _unit(
    name: str, nodes: Sequence[ast.AST], bound: set[str], defines: Iterable[str], annotated: bool = False
) -> Unit:
    shape = _Shape(bound, annotated)
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


class _Shape:
    """Writes syntax trees as tokens, names apart.

    Args:
        bound: local variables: they are numbered in order of appearance.
        annotated: keep annotations of assignments, which are code in a class of fields.
    """

    def __init__(self, bound: set[str], annotated: bool) -> None:
        self._bound, self._annotated = bound, annotated
        self._numbers: dict[str, int] = {}
        self.tokens: list[str] = []
        self.names: list[str] = []

    @property
    def variables(self) -> list[str]:
        return list(self._numbers)

    def visit(self, node: ast.AST) -> None:
        if _is_silent(node):
            return
        method = getattr(self, f"_visit_{type(node).__name__.lower()}", None)
        if method is not None:
            method(node)
            return
        self._open(node)
        for field, value in ast.iter_fields(node):
            if field not in ("ctx", "type_comment", "type_params"):
                self._value(value)
        self.tokens.append(")")

    def _open(self, node: ast.AST) -> None:
        self.tokens.append(f"({type(node).__name__}")

    def _value(self, value: object) -> None:
        if isinstance(value, ast.AST):
            self.visit(value)
        elif isinstance(value, list):
            self.tokens.append("[")
            for each in value:
                self._value(each)
            self.tokens.append("]")
        else:
            self.tokens.append(repr(value))

    def _name(self, name: str | None) -> None:
        if name is None:
            self.tokens.append("None")
        elif name in self._bound:
            self.tokens.append(f"variable {self._numbers.setdefault(name, len(self._numbers))}")
        else:
            self._outer(name)

    def _outer(self, name: str) -> None:
        self.tokens.append("name")
        self.names.append(name)

    def _visit_name(self, node: ast.Name) -> None:
        self._name(node.id)

    def _visit_attribute(self, node: ast.Attribute) -> None:
        self._open(node)
        self.visit(node.value)
        self._outer(node.attr)
        self.tokens.append(")")

    def _visit_keyword(self, node: ast.keyword) -> None:
        if node.arg in _SPEAKING_KEYWORDS:
            return
        self._open(node)
        if node.arg is not None:
            self._outer(node.arg)
        self.visit(node.value)
        self.tokens.append(")")

    def _visit_arg(self, node: ast.arg) -> None:
        self._name(node.arg)

    def _visit_functiondef(self, node: Function) -> None:
        self._open(node)
        if node.name in self._bound:
            self._name(node.name)
        self._value(node.decorator_list)
        self.visit(node.args)
        self._value(node.body)
        self.tokens.append(")")

    _visit_asyncfunctiondef = _visit_functiondef

    def _visit_classdef(self, node: ast.ClassDef) -> None:
        self._open(node)
        self._name(node.name)
        self._value([*node.decorator_list, *node.bases, *node.keywords, *node.body])
        self.tokens.append(")")

    def _visit_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is None and not self._annotated:
            return
        self.tokens.append("(Assign")
        self.visit(node.target)
        if self._annotated:
            self.visit(node.annotation)
        if node.value is not None:
            self.visit(node.value)
        self.tokens.append(")")

    def _visit_assign(self, node: ast.Assign) -> None:
        self.tokens.append("(Assign")
        for each in node.targets:
            self.visit(each)
        self.visit(node.value)
        self.tokens.append(")")

    def _visit_excepthandler(self, node: ast.ExceptHandler) -> None:
        self._open(node)
        self._value(node.type)
        if node.name is not None:
            self._name(node.name)
        self._value(node.body)
        self.tokens.append(")")

    def _visit_matchas(self, node: ast.MatchAs) -> None:
        self._open(node)
        self._value(node.pattern)
        self._name(node.name)
        self.tokens.append(")")

    def _visit_matchclass(self, node: ast.MatchClass) -> None:
        self._open(node)
        self._value([node.cls, *node.patterns])
        for name, pattern in zip(node.kwd_attrs, node.kwd_patterns, strict=True):
            self._outer(name)
            self.visit(pattern)
        self.tokens.append(")")

    def _visit_global(self, node: ast.Global | ast.Nonlocal) -> None:
        self._open(node)
        for name in node.names:
            self._name(name)
        self.tokens.append(")")

    _visit_nonlocal = _visit_global

    def _visit_import(self, node: ast.Import | ast.ImportFrom) -> None:
        """An import inside a function: it takes time where it stands. Modules of ours are names."""
        self.tokens += [text for _, text in _library_imports(node)]
        for alias in node.names:
            if _is_own(node, alias):
                self.tokens.append("import")
                self._outer((alias.asname or alias.name).rpartition(".")[2])

    _visit_importfrom = _visit_import

    def _visit_constant(self, node: ast.Constant) -> None:
        value = node.value
        if not isinstance(value, str):
            self.tokens.append(f"{type(value).__name__} {value!r}")
        elif value.isidentifier():
            self.tokens.append("text")
            self._outer(value)
        elif _MODULE.fullmatch(value) or _PATH.fullmatch(value):
            self.tokens.append("place")
            self._outer(value.rpartition("/")[2].removesuffix(".py").rpartition(".")[2])
        elif not _is_prose(value):
            self.tokens.append(f"text {value!r}")

    def _visit_joinedstr(self, node: ast.JoinedStr) -> None:
        fixed = [str(part.value) for part in node.values if isinstance(part, ast.Constant)]
        if _is_prose(" ".join(fixed)):
            self.tokens.append("prose")
            return
        self._open(node)
        for part in node.values:
            if isinstance(part, ast.Constant):
                self.tokens.append(f"text {part.value!r}")
            else:
                self.visit(part)
        self.tokens.append(")")

    def _visit_raise(self, node: ast.Raise) -> None:
        """Which error, but not its message."""
        self._open(node)
        self._value(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
        self.tokens.append(")")

    def _visit_assert(self, node: ast.Assert) -> None:
        self._open(node)
        self.visit(node.test)
        self.tokens.append(")")

    def _visit_call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        self._open(node)
        self.visit(node.func)
        if called not in _SPEAKING and not _ERROR.search(called):
            left_out = _OUTSIDE_MEASUREMENT if called == "Benchmark" else set[str]()
            self._value(node.args)
            self._value([each for each in node.keywords if each.arg not in left_out])
        self.tokens.append(")")


class _Silencer(ast.NodeTransformer):
    """Takes the texts out of an error's class."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
        return ast.Constant(None)

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant(None) if isinstance(node.value, str) else node


def _is_silent(node: ast.AST) -> bool:
    """Whether a statement does nothing: docstrings, ``pass``, imports for type checkers."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" and not node.orelse
    return isinstance(node, ast.Pass)


def _is_prose(text: str) -> bool:
    """Whether a string is text for people: two words in a row, and no markup."""
    return _PROSE.search(text) is not None and _NO_PROSE.search(text) is None


def _targets(statement: ast.stmt) -> list[str]:
    """The names that a statement assigns."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]


def _parameters(function: Function | ast.Lambda) -> list[str]:
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return [each.arg for each in given if each is not None]


def _bound(function: Function) -> set[str]:
    """The local variables of a function and of the functions inside it."""
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


def _bound_inside(node: ast.AST) -> set[str]:
    """The variables of comprehensions, lambdas and functions inside a statement of a module or a class."""
    bound: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.comprehension):
            bound.update(name.id for name in ast.walk(each.target) if isinstance(name, ast.Name))
        elif isinstance(each, ast.Lambda):
            bound.update(_parameters(each))
        elif isinstance(each, Function):
            bound |= _bound(each)
    return bound


def _all_mentions(nodes: Sequence[ast.AST]) -> frozenset[str]:
    """What a unit mentions; strings that could be names count only where names are looked up by strings."""
    found = {mention for node in nodes for mention in _mentions(node)}
    if found & {"getattr", "importlib.import_module", "import_module"}:
        return frozenset(found)
    return frozenset(mention for mention in found if not mention.startswith('"') or "." in mention)


def _mentions(root: ast.AST) -> Iterator[str]:
    """The names in a syntax tree, but for errors that are raised: what only makes messages does not count."""
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
    return isinstance(value, str) and (value.isidentifier() or _MODULE.fullmatch(value) is not None)


def _chain(node: ast.expr) -> str | None:
    """``a.b.c`` of attributes of a name."""
    if isinstance(node, ast.Name):
        return node.id
    before = _chain(node.value) if isinstance(node, ast.Attribute) else None
    return f"{before}.{node.attr}" if isinstance(node, ast.Attribute) and before is not None else None


def _is_own(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
    module = node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
    return module.partition(".")[0] in OWN_PACKAGES


def _library_imports(node: ast.Import | ast.ImportFrom) -> list[tuple[str, str]]:
    """The imports of other packages in a statement: name here and source text; ``__future__`` is no code."""
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return []
    others = [alias for alias in node.names if not _is_own(node, alias)]
    start = f"from {'.' * node.level}{node.module or ''} " if isinstance(node, ast.ImportFrom) else ""
    return [
        (alias.asname or alias.name.partition(".")[0], f"{start}import {alias.name}{_as(alias)}") for alias in others
    ]


def _as(alias: ast.alias) -> str:
    return f" as {alias.asname}" if alias.asname else ""


def _own_imports(tree: ast.Module) -> tuple[Import, ...]:
    imports: dict[Import, None] = {}
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if _is_silent(node):
            continue
        pending.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if _is_own(node, alias):
                    imports[Import(node.module or "", alias.name, alias.asname or alias.name)] = None
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _is_own(node, alias):
                    imports[Import(alias.name, "", alias.asname or alias.name.partition(".")[0])] = None
    return tuple(imports)
