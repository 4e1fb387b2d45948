"""The files of this checkout or of a commit: their blob ids, and their Python files as units of code.

A blob never changes, so parsed files are cached by blob id, and each commit is parsed only once.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from bench import code_shape, code_units
from bench.code_units import Import, Module, Unit
from ziggurat.core.files import atomic_file

PACKAGE_FOLDERS = ("src/ziggurat", "bench")
"""The folders whose Python files are parsed as sources."""

_NO_SOURCES = {"__pycache__", ".cache", "results"}


class CommitMissing(Exception):
    """Raised if a commit is not in this clone."""


@dataclass(frozen=True)
class Tree:
    """The files of one state of the repository.

    Attributes:
        blobs: path -> blob id, as git computes it.
        modules: path of each Python file in :data:`PACKAGE_FOLDERS` -> its units and imports.
    """

    blobs: Mapping[str, str]
    modules: Mapping[str, Module]

    @classmethod
    def of(cls, blobs: Mapping[str, str], read: Callable[[Sequence[str]], Mapping[str, bytes]], cache: Path) -> Tree:
        """Creates a tree, and parses the files that the cache lacks.

        Args:
            blobs: path -> blob id.
            read: a function that returns the contents of blobs by id.
            cache: the folder of cached parsed files.
        """
        paths = [path for path in blobs if path.endswith(".py") and path.startswith(_PREFIXES)]
        parsed = _parsed([blobs[path] for path in paths], read, cache)
        return cls(blobs, {path: parsed[blobs[path]] for path in paths})


_PREFIXES = tuple(f"{folder}/" for folder in PACKAGE_FOLDERS)


def working_tree(root: Path, declared: Iterable[str] = ()) -> Tree:
    """Returns the tree of the working directory, including uncommitted changes.

    Args:
        root: the root folder of the repository.
        declared: additional files and folders outside :data:`PACKAGE_FOLDERS`.
    """
    contents: dict[str, bytes] = {}
    for below in dict.fromkeys([*PACKAGE_FOLDERS, *declared]):
        place = root / below
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            inside = path.relative_to(root)
            if path.is_file() and not _NO_SOURCES & set(inside.parts):
                contents[inside.as_posix()] = path.read_bytes()
    blobs = {path: _blob_id(content) for path, content in contents.items()}
    by_blob = {blob: contents[path] for path, blob in blobs.items()}
    return Tree.of(blobs, lambda wanted: {blob: by_blob[blob] for blob in wanted}, _cache_of(root))


def tree_of_commit(root: Path, commit: str) -> Tree:
    """Returns the tree of a commit.

    Raises:
        CommitMissing: the commit is not in this clone.
    """
    listing = _git(root, "ls-tree", "-r", "-z", "--full-tree", commit)
    if listing is None:
        raise CommitMissing(f"commit {commit[:12]} is not in this clone")
    blobs: dict[str, str] = {}
    for entry in filter(None, listing.split(b"\0")):
        about, _, path = entry.partition(b"\t")
        blobs[path.decode()] = about.split()[2].decode()
    return Tree.of(blobs, lambda wanted: _read_blobs(root, wanted), _cache_of(root))


def _cache_of(root: Path) -> Path:
    return root / "bench" / ".cache" / "sources"


@lru_cache(maxsize=1)
def _version() -> str:
    """Returns a digest that changes with the algorithm and with the version of Python whose syntax trees it walks."""
    code = b"".join(Path(path).read_bytes() for path in (code_shape.__file__, code_units.__file__, __file__))
    return hashlib.sha256(code + repr(sys.version_info[:2]).encode()).hexdigest()[:16]


_MEMORY: dict[str, Module] = {}


def _parsed(
    blobs: Sequence[str], read: Callable[[Sequence[str]], Mapping[str, bytes]], cache: Path
) -> dict[str, Module]:
    path = cache / f"{_version()}.json"
    if any(blob not in _MEMORY for blob in blobs) and path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        _MEMORY.update({blob: _from_json(values) for blob, values in kept.items() if blob not in _MEMORY})
    missing = [blob for blob in dict.fromkeys(blobs) if blob not in _MEMORY]
    if missing:
        contents = read(missing)
        _MEMORY.update({blob: code_units.parse(contents[blob].decode()) for blob in missing})
        cache.mkdir(parents=True, exist_ok=True)
        for old in cache.glob("*.json"):
            if old != path:
                old.unlink(missing_ok=True)
        with atomic_file(path) as temporary:
            text = json.dumps({blob: _to_json(module) for blob, module in _MEMORY.items()}, separators=(",", ":"))
            temporary.write_text(text, encoding="utf-8")
    return {blob: _MEMORY[blob] for blob in blobs}


def _to_json(module: Module) -> list[Any]:
    units = [
        [unit.name, unit.shape, unit.names, unit.variables, unit.defines, sorted(unit.mentions)]
        for unit in module.units
    ]
    return [units, [[each.module, each.name, each.bound] for each in module.imports], module.libraries]


def _from_json(values: list[Any]) -> Module:
    units, imports, libraries = values
    return Module(
        tuple(
            Unit(name, shape, tuple(names), tuple(variables), tuple(defines), frozenset(mentions))
            for name, shape, names, variables, defines, mentions in units
        ),
        tuple(Import(module, name, bound) for module, name, bound in imports),
        tuple((bound, text) for bound, text in libraries),
    )


def _blob_id(content: bytes) -> str:
    """Returns the id that git assigns to a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _read_blobs(root: Path, blobs: Sequence[str]) -> dict[str, bytes]:
    answer = _git(root, "cat-file", "--batch", given="\n".join(blobs).encode() + b"\n")
    assert answer is not None
    contents: dict[str, bytes] = {}
    position = 0
    for blob in blobs:
        end = answer.index(b"\n", position)
        size = int(answer[position:end].split()[2])
        contents[blob] = answer[end + 1 : end + 1 + size]
        position = end + 2 + size
    return contents


def _git(root: Path, *arguments: str, given: bytes | None = None) -> bytes | None:
    try:
        answer = subprocess.run(["git", "-C", str(root), *arguments], input=given, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return answer.stdout if answer.returncode == 0 else None
