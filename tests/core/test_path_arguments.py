"""Every public parameter that takes a path takes a text as well, and so does one that takes what has a path."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import pytest

import ziggurat
from ziggurat.network.access import Access

OPENED = {"CheckpointFolder", "Experiment", "Run"}
"""Classes of what has a place on disk, in whose stead functions take that place."""
TAKEN_AS_IT_IS = {"to_yaml experiment"}
"""Parameters that need the object itself: ``to_yaml`` is the inverse of ``load_experiment``."""


def callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields every exported function, and the constructor and the public methods of every exported class.

    The generated constructors of dataclasses are left out: what they take are attributes of results, which are paths.
    """
    for name in ziggurat.__all__:
        offered = getattr(ziggurat, name)
        if inspect.isfunction(offered):
            yield name, offered
        elif inspect.isclass(offered) and not issubclass(offered, ziggurat.ZigguratError):
            generated = {"__init__"} if dataclasses.is_dataclass(offered) else set[str]()
            for attribute, member in vars(offered).items():
                function = getattr(member, "__func__", member)
                public = not attribute.startswith("_") or attribute == "__init__"
                if inspect.isfunction(function) and public and attribute not in generated:
                    yield f"{name}.{attribute}", function


def lacks_text(annotation: Any) -> bool:
    """Returns whether some part of an annotation allows a path, or what has one, and no text."""
    united = get_origin(annotation) in {Union, types.UnionType}
    members = get_args(annotation) if united else (annotation,)
    named = {getattr(member, "__name__", "") for member in members}
    if ("Path" in named or named & OPENED) and not {str, Path} <= set(members):
        return True
    called_back = {collections.abc.Callable}  # their parameters are what the caller is given
    inner = [each for member in members if get_origin(member) not in called_back for each in get_args(member)]
    return any(map(lacks_text, inner))


def parameters() -> Iterator[tuple[str, Any]]:
    exported = {name: getattr(ziggurat, name) for name in ziggurat.__all__}  # what a module imports for types alone
    for where, function in callables():
        hints = typing.get_type_hints(function, localns=exported)
        for name in inspect.signature(function).parameters:
            if name != "self" and f"{where} {name}" not in TAKEN_AS_IT_IS:
                yield f"{where} {name}", hints.get(name)


@pytest.mark.parametrize(
    ("annotation", "lacks"),
    [
        (Path, True),
        (Path | None, True),
        (str | Path | None, False),
        (list[Path], True),
        (list[str | Path], False),
        (list[str] | Path, True),
        (dict[str, Path], True),
        (ziggurat.Run | Path, True),
        (ziggurat.Run | str, True),
        (ziggurat.Run | str | Path, False),
        (ziggurat.Experiment, True),
        (Callable[[Path], None], False),
        (int, False),
    ],
)
def test_the_check_finds_what_it_should(annotation: Any, lacks: bool) -> None:
    assert lacks_text(annotation) is lacks


def test_every_path_may_be_a_text() -> None:
    found = dict(parameters())
    assert {"train experiment", "Dataset.__init__ folder", "Run.dataset prepared", "ScaleResult.load folder"} <= set(
        found
    )
    assert [where for where, annotation in found.items() if lacks_text(annotation)] == []


def test_a_text_of_several_letters_is_one_file() -> None:
    """A text is a sequence of texts as well, and must not be taken for several names of one letter."""
    with pytest.raises(ziggurat.ConfigError, match="--set seed: expected KEY=VALUE"):
        ziggurat.load_experiment(Path(__file__).parents[2] / "examples" / "movielens.yaml", "seed")


def test_a_dataset_is_fetched_by_name(tmp_path: Path) -> None:
    with pytest.raises(ziggurat.ConfigError, match="no dataset is called 'movielens'"):
        ziggurat.get_dataset("movielens", str(tmp_path))


def test_the_file_of_addresses_may_be_a_text(tmp_path: Path) -> None:
    """Addresses that killed readers left are deleted before anything else is done."""
    left = tmp_path / "addresses"
    left.write_text("grpc://127.0.0.1:1\n")
    config = tmp_path / "exp.yaml"
    config.write_text(_CONFIG.format(folder=tmp_path))
    with pytest.raises(ziggurat.DataError, match="missing"):
        ziggurat.ingest(str(config), address_file=str(left), access=Access())
    assert not left.exists()


_CONFIG = """
name: nothing
data:
  folder: {folder}
  source: {{name: csv, files: [missing.csv]}}
  split: {{name: random, validation: 0.1, test: 0.1}}
  labels: [{{name: click}}]
features:
  - {{name: user, kind: categorical}}
"""
