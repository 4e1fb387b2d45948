"""Finds the code that a benchmark measures, in this checkout or in a commit, and compares two such states.

The search begins at a benchmark's own files. It follows the imports of our own modules, and in these modules the
definitions whose names are mentioned, directly or indirectly. Files other than Python are declared.
docs/benchmarks.md explains the rules under "When a result is out of date".
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from bench.code_units import MODULE_STATEMENTS, Import, Module, Unit
from bench.trees import Tree, tree_of_commit, working_tree

RUNNER = {
    "bench.benchmark",
    "bench.code_shape",
    "bench.code_units",
    "bench.noted",  # the older name of resumable_cases, in commits
    "bench.provenance",
    "bench.resumable_cases",
    "bench.results",
    "bench.sources",
    "bench.trees",
}
"""Modules that describe, store and judge figures; they are not part of what a benchmark measures."""


@dataclass(frozen=True, slots=True)
class Located:
    """A unit and the module that contains it."""

    module: str
    unit: Unit

    @property
    def name(self) -> str:
        """The qualified name of the unit, module included."""
        return f"{self.module}.{self.unit.name}"


@dataclass(frozen=True, slots=True)
class Sources:
    """The code and files that a benchmark reaches in one tree.

    Attributes:
        units: the units of code.
        libraries: the imports of other packages in the modules reached, as source text.
        data: path of a declared file -> its blob id.
        definitions: name -> how often the tree defines it, to distinguish renames from other changes.
        paths: the paths of all files read, Python and declared.
        all_code: :attr:`~bench.code_units.Unit.exact` of all units of the tree, reached or not.
    """

    units: tuple[Located, ...]
    libraries: frozenset[str]
    data: Mapping[str, str]
    definitions: Counter[str]
    paths: tuple[str, ...]
    all_code: frozenset[str]

    @property
    def digest(self) -> str:
        """SHA-256 of the code with its names and places, and of the declared files."""
        units = sorted((each.name, each.unit.exact) for each in self.units)
        return hashlib.sha256(repr((units, sorted(self.libraries), sorted(self.data.items()))).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between the sources in two trees.

    Attributes:
        code: the functions, classes and files whose code differs, marked ``new:`` or ``removed:`` if on one side only.
        places: whether names, modules or places differ.
    """

    code: tuple[str, ...]
    places: bool


@dataclass(frozen=True, slots=True)
class Mentioned:
    """The definitions and names that some code mentions.

    Attributes:
        places: the mentioned definitions, as pairs of a module and a name at its top.
        modules: the modules named by strings.
        texts: the strings that could be names.
        names: the mentioned names, without attributes.
    """

    places: frozenset[tuple[str, str]]
    modules: frozenset[str]
    texts: frozenset[str]
    names: frozenset[str]


class Reach:
    """Follows imports and mentions through a tree.

    Args:
        tree: the tree to search.

    Attributes:
        modules: dotted name -> units and imports of the module.
        tops: module -> name defined at its top -> the units of that definition.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._paths = {_module_name(path): path for path in tree.modules}
        self.modules = {name: tree.modules[path] for name, path in self._paths.items()}
        self._definitions: Counter[str] = Counter(part for name in self.modules for part in set(name.split(".")))
        for module in self.modules.values():
            self._definitions.update(name for unit in module.units for name in unit.defines)
            self._definitions.update(each.bound for each in module.imports if each.bound != each.name)
        self._all_code = frozenset(unit.exact for module in self.modules.values() for unit in module.units)
        self._bindings = {name: _bindings(module) for name, module in self.modules.items()}
        self.tops = {name: _tops(name, module) for name, module in self.modules.items()}
        self._with_name: defaultdict[str, list[str]] = defaultdict(list)
        for name, tops in self.tops.items():
            for top in tops:
                self._with_name[top].append(name)
        self._mentioned: dict[tuple[str, str], Mentioned] = {}

    def sources(self, depends_on: Iterable[str]) -> Sources:
        """Returns what is reached from files and folders.

        Args:
            depends_on: the files and folders; imports of Python files are followed, other files are data.

        Raises:
            FileNotFoundError: the tree has no such file or folder.
        """
        files = [file for path in depends_on for file in self._below(path)]
        starts = {name for name, path in self._paths.items() if path in files}
        data = {file: self._tree.blobs[file] for file in files if file not in self._tree.modules}
        reached = _Reached(self, starts)
        return Sources(
            tuple(reached.units()),
            frozenset(reached.libraries()),
            data,
            self._definitions,
            tuple(sorted({*(self._paths[name] for name in reached.modules), *data})),
            self._all_code,
        )

    def _below(self, path: str) -> list[str]:
        """Returns the files of a declared path; if it has moved, the only file of that name below ``bench``."""
        blobs = self._tree.blobs
        found = [file for file in blobs if file == path or file.startswith(f"{path}/")]
        if not found:
            name = PurePosixPath(path).name
            found = [file for file in blobs if file.startswith("bench/") and PurePosixPath(file).name == name]
        if not found or (len(found) > 1 and path.endswith(".py")):
            raise FileNotFoundError(path)
        return found

    def imported(self, module: str) -> Iterator[str]:
        """Yields the modules that a module imports.

        A package's ``__init__`` counts if a name is imported from it, but not if a module below it is imported.
        """
        for each in self.modules[module].imports:
            below = f"{each.module}.{each.name}"
            yield from [name for name in (below, each.module) if name in self.modules][:1]

    def mentioned(self, module: str, name: str) -> Mentioned:
        """Returns the mentions of the units of a definition at the top of ``module``."""
        found = self._mentioned.get((module, name))
        if found is None:
            mentions = {mention for each in self.tops[module][name] for mention in each.unit.mentions}
            texts = {mention.strip('"') for mention in mentions if mention.startswith('"')}
            places = {place for mention in mentions for place in self._places(module, mention)}
            found = self._mentioned[module, name] = Mentioned(
                frozenset(place for place in places if place[1] in self.tops[place[0]]),
                frozenset(texts & self.modules.keys()),
                frozenset(text for text in texts if "." not in text),
                frozenset(mention.partition(".")[0] for mention in mentions),
            )
        return found

    def _places(self, module: str, mention: str) -> Iterator[tuple[str, str]]:
        """Yields the definitions that a name in ``module`` may refer to, attributes of modules included."""
        name, *attributes = mention.split(".")
        yield module, name
        for each in self._bindings[module].get(name, ()):
            yield from self._follow(each, attributes)

    def _follow(self, imported: Import, attributes: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yields the definitions that an imported name and its attributes refer to, through re-exports of packages."""
        parts = [*([imported.name] if imported.name else []), *attributes]
        target = (
            imported.module if imported.name or imported.bound != imported.module.partition(".")[0] else imported.bound
        )
        while parts and f"{target}.{parts[0]}" in self.modules:
            target, parts = f"{target}.{parts[0]}", parts[1:]
        if target not in self.modules or not parts:
            return
        yield target, parts[0]
        re_exports = self._bindings[target].get(parts[0], ())
        for each in re_exports:
            if each != imported:
                yield from self._follow(each, parts[1:])
        if "__getattr__" in self.tops[target] and not re_exports and parts[0] not in self.tops[target]:
            yield target, "__getattr__"
            yield from ((name, parts[0]) for name in self._with_name[parts[0]])


class _Reached:
    """Collects all definitions of some modules, and those that they mention, directly or indirectly.

    Args:
        tree: the tree to search.
        starts: the modules.
    """

    def __init__(self, tree: Reach, starts: set[str]) -> None:
        self._tree, self._starts = tree, starts
        self.modules: set[str] = set()
        self._taken: set[tuple[str, str]] = set()
        self._wanted: set[tuple[str, str]] = set()
        self._texts: set[str] = set()
        self._pending: list[tuple[str, str]] = []
        self._enter(starts)
        while self._pending:
            while self._pending:
                mentioned = tree.mentioned(*self._pending.pop())
                self._texts |= mentioned.texts
                self._enter(mentioned.modules)
                for module, name in mentioned.places:
                    self._take(module, name)
            for module in self.modules:
                for name in self._texts & tree.tops[module].keys():
                    self._take(module, name)

    def units(self) -> list[Located]:
        """Returns the units of the definitions reached."""
        return [each for module, name in sorted(self._taken) for each in self._tree.tops[module][name]]

    def libraries(self) -> set[str]:
        """Returns the imports of other packages whose names are mentioned, as source text."""
        names: defaultdict[str, set[str]] = defaultdict(set)
        for module, name in self._taken:
            names[module] |= self._tree.mentioned(module, name).names
        return {
            text
            for module in self.modules
            for bound, text in self._tree.modules[module].libraries
            if bound in names[module]
        }

    def _enter(self, modules: Iterable[str]) -> None:
        """Adds modules and all modules that they import."""
        pending = list(modules)
        while pending:
            module = pending.pop()
            if module in self.modules or module in RUNNER:
                continue
            self.modules.add(module)
            pending += self._tree.imported(module)
            for name in self._tree.tops[module]:
                if name == MODULE_STATEMENTS or module in self._starts or (module, name) in self._wanted:
                    self._take(module, name)

    def _take(self, module: str, name: str) -> None:
        place = module, name
        if module not in self.modules:
            self._wanted.add(place)
        elif place not in self._taken:
            self._taken.add(place)
            self._pending.append(place)


def sources_here(root: Path, depends_on: Sequence[str]) -> Sources:
    """Returns a benchmark's sources in the working directory."""
    return Reach(working_tree(root, depends_on)).sources(depends_on)


@lru_cache(maxsize=64)
def reach_of_commit(root: Path, commit: str) -> Reach:
    """Returns the searchable tree of a commit.

    Raises:
        CommitMissing: the commit is not in this clone.
    """
    return Reach(tree_of_commit(root, commit))


def compare(old: Sources, new: Sources) -> Difference:
    """Distinguishes code that changed from code that moved or was renamed.

    Units of equal code are removed from both sides, wherever they are. Of the rest, an old and a new unit of one shape
    are the same code if each name that differs was renamed in the tree (:class:`_Renames`). All others changed.
    """
    before, after = _without_equals(old.units, new.units)
    renamed = _Renames(old.definitions, new.definitions, before, after)
    by_shape: defaultdict[str, list[Located]] = defaultdict(list)
    for each in after:
        by_shape[each.unit.shape].append(each)
    removed: list[Located] = []
    for each in before:
        candidates = by_shape[each.unit.shape]
        alike = [other for other in candidates if renamed.explain(each.unit.names, other.unit.names)]
        if alike:
            candidates.remove(min(alike, key=lambda other: _distance(each, other)))
        else:
            removed.append(each)
    added = [each for candidates in by_shape.values() for each in candidates]
    # Unchanged code that is merely mentioned newly, or no longer, is not reported beside the code that mentions it.
    written = [each for each in added if each.unit.exact not in old.all_code]
    deleted = [each for each in removed if each.unit.exact not in new.all_code]
    if written or deleted:
        removed, added = deleted, written
    code = [*_changes(removed, added), *_libraries(old, new), *_data(old, new)]
    return Difference(tuple(code), _located(old) != _located(new) or set(old.data) != set(new.data))


def _located(sources: Sources) -> set[tuple[str, str]]:
    return {(each.name, each.unit.exact) for each in sources.units}


class _Renames:
    """Distinguishes renamed names from other names.

    A name was renamed if a unit that is the only one of its shape on both sides defines the old name on one side and
    the new name on the other; or if the tree defines the old name less often than before, and the new name more often.

    Args:
        old, new: name -> how often the old or new tree defines it.
        before, after: the units that differ.
    """

    def __init__(
        self, old: Counter[str], new: Counter[str], before: Sequence[Located], after: Sequence[Located]
    ) -> None:
        self._old, self._new = old, new
        alone, alone_now = _only_of_their_shape(before), _only_of_their_shape(after)
        self._seen = {
            pair
            for shape in alone.keys() & alone_now.keys()
            for pair in zip(alone[shape].unit.defines, alone_now[shape].unit.defines, strict=False)
        }

    def explain(self, old: Sequence[str], new: Sequence[str]) -> bool:
        """Returns whether the names of a unit differ only by renames."""
        return len(old) == len(new) and all(a == b or self._renamed(a, b) for a, b in zip(old, new, strict=True))

    def _renamed(self, old: str, new: str) -> bool:
        counted = self._new[old] < self._old[old] and self._new[new] > self._old[new]
        return counted or (old, new) in self._seen


def _only_of_their_shape(units: Sequence[Located]) -> dict[str, Located]:
    """Returns shape -> unit, for shapes of exactly one unit."""
    shapes = Counter(each.unit.shape for each in units)
    return {each.unit.shape: each for each in units if shapes[each.unit.shape] == 1}


def _without_equals(old: Sequence[Located], new: Sequence[Located]) -> tuple[list[Located], list[Located]]:
    """Returns both sides without the units that the other side has too, at the same place or elsewhere."""
    places = {(each.name, each.unit.exact) for each in old} & {(each.name, each.unit.exact) for each in new}
    old, new = ([each for each in side if (each.name, each.unit.exact) not in places] for side in (old, new))
    common = Counter(each.unit.exact for each in old) & Counter(each.unit.exact for each in new)
    return _without(old, common), _without(new, common)


def _without(units: Sequence[Located], common: Counter[str]) -> list[Located]:
    left, kept = Counter(common), list[Located]()
    for each in units:
        if left[each.unit.exact]:
            left[each.unit.exact] -= 1
        else:
            kept.append(each)
    return kept


def _distance(old: Located, new: Located) -> tuple[bool, bool, int]:
    """Returns a sort key that is smaller the more likely ``new`` is the renamed ``old``."""
    differing = sum(a != b for a, b in zip(old.unit.names, new.unit.names, strict=True))
    return old.name != new.name, old.unit.name != new.unit.name, differing


def _changes(removed: Sequence[Located], added: Sequence[Located]) -> list[str]:
    """Returns a line per unit: its name if it changed, prefixed with ``new:`` or ``removed:`` if on one side only."""
    old_names = Counter(each.unit.name for each in removed)
    changed, new = list[str](), list[str]()
    for each in added:
        if old_names[each.unit.name]:
            old_names[each.unit.name] -= 1
            changed.append(each.name)
        else:
            new.append(f"new: {each.name}")
    left = [each for each in reversed(removed) if old_names[each.unit.name]]
    lost: list[str] = []
    for each in left:
        if old_names[each.unit.name]:
            old_names[each.unit.name] -= 1
            lost.append(f"removed: {each.name}")
    return [*sorted(changed), *sorted(new), *sorted(lost)]


def _libraries(old: Sources, new: Sources) -> list[str]:
    return [
        *(f"new: {line}" for line in sorted(new.libraries - old.libraries)),
        *(f"removed: {line}" for line in sorted(old.libraries - new.libraries)),
    ]


def _data(old: Sources, new: Sources) -> list[str]:
    """Returns the declared files whose content is new."""
    known = set(old.data.values())
    return sorted(path for path, blob in new.data.items() if blob not in known)


def _tops(name: str, module: Module) -> dict[str, list[Located]]:
    tops: defaultdict[str, list[Located]] = defaultdict(list)
    for unit in module.units:
        tops[unit.top].append(Located(name, unit))
    return dict(tops)


def _bindings(module: Module) -> dict[str, list[Import]]:
    """Returns name in a module -> the imports that bind it."""
    bindings: defaultdict[str, list[Import]] = defaultdict(list)
    for each in module.imports:
        bindings[each.bound].append(each)
    return bindings


def _module_name(path: str) -> str:
    parts = PurePosixPath(path.removeprefix("src/")).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
