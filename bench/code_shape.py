"""Normalises code: what of a syntax tree counts as code, written as tokens, with the names kept apart.

Comments, docstrings, formatting, annotations of functions and variables, and text for people (error messages, notes,
help) do not count.
"""

from __future__ import annotations

import ast
import re

OWN_PACKAGES = ("ziggurat", "bench")
"""Packages whose modules count as sources; the name of any other module is part of the code."""

MODULE_NAME = re.compile(rf"(?:{'|'.join(OWN_PACKAGES)})(?:\.\w+)+")
"""Matches the dotted name of a module of these packages."""

ERROR_NAME = re.compile(r"(?:Error|Exception|Warning|Mismatch)$")
"""Finds the names of exception classes."""

_PATH = re.compile(r"(?:src/ziggurat|bench|tests|examples|docs|tools)(?:/[\w.-]+)+")
_PROSE = re.compile(r"[A-Za-z]+[,;:.]? [A-Za-z]+")
_MARKUP = re.compile(r"[<>{}\n]")
_MESSAGE_FUNCTIONS = {"print", "say", "note", "warn"}
"""Functions whose arguments are only shown to people."""
_MESSAGE_KEYWORDS = {"help", "description"}
_OUTSIDE_MEASUREMENT = {"claim", "targets", "depends_on"}
"""Keywords of ``Benchmark(...)`` that can change without another measurement."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Shape:
    """Writes syntax trees as tokens; names other than those of local variables are collected apart.

    Args:
        variables: the local variables; they are numbered in order of appearance.
        annotated: whether annotations of assignments are kept, which are code in a class of fields.

    Attributes:
        tokens: the tokens so far.
        names: the collected names, in order.
    """

    def __init__(self, variables: set[str], annotated: bool) -> None:
        self._local, self._annotated = variables, annotated
        self._numbers: dict[str, int] = {}
        self.tokens: list[str] = []
        self.names: list[str] = []

    @property
    def variables(self) -> list[str]:
        """The local variables in order of first appearance."""
        return list(self._numbers)

    def visit(self, node: ast.AST) -> None:
        """Appends the tokens and names of a syntax tree."""
        if has_no_effect(node):
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
        elif name in self._local:
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
        if node.arg in _MESSAGE_KEYWORDS:
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
        if node.name in self._local:
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
        """Keeps an import inside a function, as it takes time there. Our own modules are names."""
        self.tokens += [text for _, text in library_imports(node)]
        for alias in node.names:
            if is_own_import(node, alias):
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
        elif MODULE_NAME.fullmatch(value) or _PATH.fullmatch(value):
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
        """Keeps the class of the error, but not its message."""
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
        if called not in _MESSAGE_FUNCTIONS and not ERROR_NAME.search(called):
            left_out = _OUTSIDE_MEASUREMENT if called == "Benchmark" else set[str]()
            self._value(node.args)
            self._value([each for each in node.keywords if each.arg not in left_out])
        self.tokens.append(")")


class TextRemover(ast.NodeTransformer):
    """Removes the texts from an exception class."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
        return ast.Constant(None)

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant(None) if isinstance(node.value, str) else node


def has_no_effect(node: ast.AST) -> bool:
    """Returns whether a statement does nothing at run time: a docstring, ``pass``, or imports for type checkers."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" and not node.orelse
    return isinstance(node, ast.Pass)


def _is_prose(text: str) -> bool:
    """Returns whether a string is text for people: it has two words in a row and no markup."""
    return _PROSE.search(text) is not None and _MARKUP.search(text) is None


def is_own_import(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
    """Returns whether a name of an import statement comes from one of our own packages."""
    module = node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
    return module.partition(".")[0] in OWN_PACKAGES


def library_imports(node: ast.Import | ast.ImportFrom) -> list[tuple[str, str]]:
    """Returns the bound name and the source text of each import of another package; ``__future__`` is left out."""
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return []
    others = [alias for alias in node.names if not is_own_import(node, alias)]
    start = f"from {'.' * node.level}{node.module or ''} " if isinstance(node, ast.ImportFrom) else ""
    return [
        (alias.asname or alias.name.partition(".")[0], f"{start}import {alias.name}{_alias_suffix(alias)}")
        for alias in others
    ]


def _alias_suffix(alias: ast.alias) -> str:
    return f" as {alias.asname}" if alias.asname else ""
