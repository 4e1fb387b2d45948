"""Parts from outside the package: found, checked as built-in ones are, and written back to be found again."""

from __future__ import annotations

import importlib
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic
import pytest
from pydantic import Field, PositiveInt

from ziggurat.core.config import Config, parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.core.parts import Importable, PartConfig, built_in, built_in_names


class Base(PartConfig):
    """A kind of part."""


class Small(Base):
    name: Literal["small"] = "small"
    width: PositiveInt = 3


class Large(Base):
    name: Literal["large"] = "large"
    depth: PositiveInt = 3


Some = Annotated[Annotated[Small | Large, Field(discriminator="name")], Importable(Base, "shape")]


class Whole(Config):
    shape: Some = Small()
    many: tuple[Some, ...] = ()


class Own:
    class Config(Base):
        size: PositiveInt = 4
        """How large it is."""


@pytest.fixture(autouse=True)
def own_shapes() -> Iterator[None]:
    module = types.ModuleType("own_shapes")
    module.Own, module.Whole = Own, Whole  # type: ignore[attr-defined]
    module.__dict__["a_function"] = len
    sys.modules["own_shapes"] = module
    yield
    del sys.modules["own_shapes"]


def test_a_part_from_outside_is_parsed_and_written_back() -> None:
    given = {
        "shape": {"import": "own_shapes:Own", "size": 7},
        "many": [{"name": "large"}, {"import": "own_shapes:Own"}],
    }
    whole = parse_config(Whole, given)
    assert isinstance(whole.shape, Own.Config)
    assert whole.shape.size == 7
    written = whole.model_dump(mode="json")
    assert written == {
        "shape": {"import": "own_shapes:Own", "size": 7},
        "many": [{"name": "large", "depth": 3}, {"import": "own_shapes:Own", "size": 4}],
    }
    assert parse_config(Whole, written) == whole
    assert [whole.shape.title, whole.many[0].title] == ["own_shapes:Own", "large"]
    assert [whole.shape.reference, whole.many[0].reference] == ["own_shapes:Own", None]


def test_a_copy_of_a_part_keeps_its_reference() -> None:
    whole = parse_config(Whole, {"shape": {"import": "own_shapes:Own"}})
    assert whole.shape.model_copy(update={"size": 9}).reference == "own_shapes:Own"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"shape": {"import": "own_shapes:Own", "sise": 7}}, r"shape\.sise: unknown key; did you mean 'size'\?"),
        (
            {"shape": {"import": "own_shapes:Own", "size": 0}},
            r"shape\.size: Input should be greater than 0; received 0",
        ),
        ({"many": [{"import": "own_shapes:Own", "size": "x"}]}, r"many\.0\.size: Input should be a whole number"),
        (
            {"shape": {"import": "own_shapes:Own", "name": "small"}},
            r"shape\.import: has both name \('small'\) and import \(own_shapes:Own\), which exclude each other",
        ),
        ({"shape": {"import": "no_such:Own"}}, r"shape\.import: there is no module 'no_such'; it is looked for"),
        (
            {"shape": {"import": "own_shapes:Ovn"}},
            r"shape\.import: own_shapes \(.*\) has no 'Ovn'; did you mean 'Own'\?\n  hint: correct the name",
        ),
        ({"shape": {"import": "own_shapes"}}, r"shape\.import: expected MODULE:CLASS, .* received 'own_shapes'"),
        ({"shape": {"import": "own_shapes.Own"}}, r"write it as in own_shapes:Own"),
        ({"shape": {"import": "own_shapes:a_function"}}, r"own_shapes:a_function is a builtin_function.*, not a class"),
        ({"shape": {"import": 3}}, r"shape\.import: expected MODULE:CLASS"),
        ({"shape": {"import": "own_shapes:Whole"}}, r"own_shapes:Whole is not a shape: it has no nested class Config"),
        ({"shape": {"name": "smal"}}, r"shape\.name: unknown 'smal'; did you mean 'small'\? allowed: small, large"),
    ],
)
def test_what_is_wrong_with_a_part_is_named(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_config(Whole, given)


MODULES = {
    "broken_shapes.py": "raise RuntimeError('no licence')",
    "needy_shapes.py": "\nimport not_there_at_all",
    "shapes_of_mine/__init__.py": "",
    "shapes_of_mine/round.py": "class Circle: pass",
    "json.py": "class Own: pass",
    "runs/one/environment.json": "{}",
    "runs/one/config.yaml": "",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a few modules and a run."""
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    importlib.invalidate_caches()
    yield tmp_path
    for name in [each for each in sys.modules if each.startswith("shapes_of_mine")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("reference", "problem", "hint"),
    [
        (
            "broken_shapes:Own",
            "broken_shapes fails while it is imported: RuntimeError: no licence\n  {folder}/broken_shapes.py, line 1",
            "correct that code",
        ),
        (
            "needy_shapes:Own",
            "needy_shapes imports 'not_there_at_all', which is not found\n  {folder}/needy_shapes.py, line 2",
            "install it into this environment",
        ),
        (
            "shapes_of_mine.rund:Circle",
            "'shapes_of_mine.rund': {folder}/shapes_of_mine/__init__.py has round; did you mean shapes_of_mine.round?",
            "correct the name",
        ),
        (
            "shapes_of_min:Circle",
            "it is looked for among the installed packages and below {folder}; did you mean 'shapes_of_mine'?",
            "correct the name; run the command in the folder that holds shapes_of_min, or set PYTHONPATH",
        ),
        ("json:Own", "json ({json}) has no 'Own'", "{folder}/json.py is not reached, as another module of its name is"),
        ("./shapes_of_mine/round.py:Circle", "expected MODULE:CLASS", "write it as in shapes_of_mine.round:Circle"),
        ("shapes_of_mine.round:Square", "has no 'Square'", "the module has Circle; correct the name"),
    ],
)
def test_an_import_that_fails_says_why_and_what_to_do(folder: Path, reference: str, problem: str, hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config(Whole, {"shape": {"import": reference}})
    assert problem.format(folder=folder, json=json.__file__) in raised.value.problem
    assert raised.value.hint.startswith(hint.format(folder=folder))


def test_a_module_near_the_config_is_found_for_the_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    with pytest.raises(ConfigError) as raised:
        parse_config(Whole, {"shape": {"import": "shapes_of_mine.round:Circle"}}, str(folder / "runs/one/config.yaml"))
    assert raised.value.hint.startswith(
        f"it is in {folder}: run the command there, or set PYTHONPATH={folder}; if it was"
    )


def test_a_part_that_was_renamed_says_how_its_runs_find_it(folder: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config(Whole, {"shape": {"import": "own_shapes:Ovn"}}, str(folder / "runs/one/config.yaml"))
    assert raised.value.hint == (
        "if it was renamed or moved after this run was trained, leave the old name where it was: `Ovn = Own`"
    )


def test_a_part_of_another_kind_is_called_by_its_kind() -> None:
    class Colour(PartConfig):
        """Another kind."""

    Importable(Colour, "colour")
    sys.modules["own_shapes"].Red = type("Red", (), {"Config": type("Config", (Colour,), {})})  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"own_shapes:Red is a colour, not a shape\n  hint: name a shape here"):
        parse_config(Whole, {"shape": {"import": "own_shapes:Red"}})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"shape": "own_shapes:Own"}, r'class of your own is named by \{import: "own_shapes:Own"\}; received'),
        (
            {"shape": {"class": "Own"}},
            r"unknown key; allowed: .*; a class of your own is named by \{import: \"MODULE:CLASS",
        ),
    ],
)
def test_other_ways_to_name_a_class_lead_to_the_right_one(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_config(Whole, given)


class Checked(Config):
    size: int = 3

    @pydantic.model_validator(mode="after")
    def _even(self) -> Self:
        if self.size % 2:
            raise ConfigError("an odd size", "take an even one")
        return self


class Two(Config):
    first: Checked
    second: Checked


def test_the_hint_of_a_validator_is_the_hint() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config(Checked, {"size": 5})
    assert (raised.value.problem, raised.value.hint) == ("config: 1 problem\n  an odd size", "take an even one")
    with pytest.raises(ConfigError) as raised:
        parse_config(Two, {"first": {"size": 5}, "second": {"size": 7}})
    assert raised.value.problem.splitlines()[1:] == [
        "  first: an odd size; take an even one",
        "  second: an odd size; take an even one",
    ]


def test_the_schema_knows_both() -> None:
    schema = Whole.model_json_schema()["properties"]["shape"]
    built, outside = schema["anyOf"]
    assert set(built["discriminator"]["mapping"]) == {"small", "large"}
    assert outside["required"] == ["import"]


def test_the_built_in_ones_are_listed_in_order() -> None:
    assert built_in(Some, Base) == (Small, Large)
    assert built_in_names(Some) == ("small", "large")
