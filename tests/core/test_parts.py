"""Parts from outside the package: found, checked as built-in ones are, and written back to be found again."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

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
        ({"shape": {"import": "own_shapes:Own", "name": "small"}}, r"shape\.name: unknown key; allowed: size"),
        ({"shape": {"import": "no_such:Own"}}, r"shape\.import: there is no module 'no_such'; it is looked for"),
        (
            {"shape": {"import": "own_shapes:Ovn"}},
            r"shape\.import: own_shapes \(.*\) has no 'Ovn'; did you mean 'Own'\?\n  hint: correct the name",
        ),
        ({"shape": {"import": "own_shapes"}}, r"shape\.import: expected MODULE:CLASS, .* received 'own_shapes'"),
        ({"shape": {"import": 3}}, r"shape\.import: expected MODULE:CLASS"),
        ({"shape": {"import": "own_shapes:Whole"}}, r"own_shapes:Whole is no shape: it has no nested class Config"),
        ({"shape": {"name": "smal"}}, r"shape\.name: unknown 'smal'; did you mean 'small'\? allowed: small, large"),
    ],
)
def test_what_is_wrong_with_a_part_is_named(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_config(Whole, given)


def test_a_module_that_fails_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_shapes.py").write_text("raise RuntimeError('no licence')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="broken_shapes fails while it is imported: RuntimeError: no licence"):
        parse_config(Whole, {"shape": {"import": "broken_shapes:Own"}})


def test_the_schema_knows_both() -> None:
    schema = Whole.model_json_schema()["properties"]["shape"]
    built, outside = schema["anyOf"]
    assert set(built["discriminator"]["mapping"]) == {"small", "large"}
    assert outside["required"] == ["import"]


def test_the_built_in_ones_are_listed_in_order() -> None:
    assert built_in(Some, Base) == (Small, Large)
    assert built_in_names(Some) == ("small", "large")
