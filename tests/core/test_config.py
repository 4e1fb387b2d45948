"""Errors about keys and values name the path, what was given, what is allowed, and the nearest key."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import pydantic
import pytest

from ziggurat.core.config import Config, established_values, parse_config, set_by_path
from ziggurat.core.errors import ConfigError


class Cat(Config):
    name: Literal["cat"] = "cat"
    lives: int = pydantic.Field(default=9, ge=1)


class Dog(Config):
    name: Literal["dog"] = "dog"
    weight: float = 10.0


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="name")]


class Round(Config):
    kind: Literal["round"] = "round"
    name: str
    radius: float = 1.0


class Square(Config):
    kind: Literal["square"] = "square"
    name: str
    side: float = 1.0

    @pydantic.model_validator(mode="after")
    def _not_huge(self) -> Square:
        if self.side > 100:
            raise ValueError(f"side {self.side:g} is more than 100")
        return self


class Shed(Config):
    tools: tuple[Pet, ...] = pydantic.Field(min_length=1)
    windows: tuple[Annotated[Round | Square, pydantic.Field(discriminator="kind")], ...] = pydantic.Field(min_length=1)
    doors: tuple[int, ...] = pydantic.Field(default=(1,), min_length=1)


class Bird(Config):
    name: Literal["bird"] = "bird"
    dog: Cat = Cat()  # the key equals the tag of another class
    song: str


class Cage(Config):
    inside: Annotated[Cat | Dog | Bird, pydantic.Field(discriminator="name")] = Cat()


class Home(Config):
    window: Annotated[Round | Square, pydantic.Field(discriminator="kind")] = Round(name="w")
    pet: Pet = Cat()
    others: tuple[Pet, ...] = ()
    by_room: dict[str, Pet] = pydantic.Field(default_factory=dict)
    second: Pet | None = pydantic.Field(default=None)
    rooms: tuple[int, ...] = ()
    lamps: dict[str, float] = pydantic.Field(default_factory=dict)
    height: pydantic.FiniteFloat | None = None
    heated: bool = False
    address: str


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"adress": "x"}, "adress: unknown key; did you mean 'address'?"),
        ({}, "address: required key is missing"),
        ({"address": 3}, "address: Input should be text, a number in quotes for one; received 3"),
        ({"address": "x", "pet": {"name": "cat", "live": 3}}, "pet.live: unknown key; did you mean 'lives'?"),
        ({"address": "x", "pet": {"name": "dog", "lives": 3}}, "pet.lives: unknown key; allowed: name, weight"),
        ({"address": "x", "pet": {"name": "cta"}}, "pet.name: unknown 'cta'; did you mean 'cat'? allowed: cat, dog"),
        ({"address": "x", "others": [{"lives": 3}]}, "others.0.name: required key is missing; allowed: cat, dog"),
        ({"address": "x", "pet": {"live": 3}}, "pet.live: unknown key; did you mean 'lives'?"),
        ({"address": "x", "others": "cat"}, "others: Input should be a list, as in [a, b]; received 'cat'"),
        ({"address": "x", "lamps": 3}, "lamps: Input should be a section with keys; received 3"),
        (
            {"address": "x", "pet": {"name": "cat", "lives": True}},
            "pet.lives: Input should be a whole number; received T",
        ),
        (
            {"address": "x", "pet": {"name": "cat", "lives": "3"}},
            "pet.lives: Input should be a whole number; received '3'",
        ),
        (
            {"address": "x", "pet": {"name": "cat", "lives": 3.5}},
            "pet.lives: Input should be a whole number; received 3.5",
        ),
        (
            {"address": "x", "pet": {"name": "dog", "weight": False}},
            "pet.weight: Input should be a number; received False",
        ),
        ({"address": "x", "rooms": [2, True]}, "rooms.1: Input should be a whole number; received True"),
        ({"address": "x", "lamps": {"hall": "7"}}, "lamps.hall: Input should be a number; received '7'"),
        ({"address": "x", "height": "tall"}, "height: Input should be a number; received 'tall'"),
        ({"address": "x", "heated": "warm"}, "heated: Input should be true or false; received 'warm'"),
        ({"address": "x", "pet": {"name": "cat", "lives": 0}}, "pet.lives: Input should be greater than or equal to 1"),
        ({"address": "x", "others": [{"name": "dog"}, {"name": "dog", "wieght": 1}]}, "others.1.wieght: unknown key"),
        (
            {"address": "x", "window": {"kind": "square", "name": "w", "radius": 1}},
            "window.radius: unknown key; allowed: kin",
        ),
        ({"address": "x", "window": {"kind": "square", "name": "w", "side": 101}}, "window: side 101 is more than 100"),
        ({"address": "x", "by_room": {"attic": {"name": "cat", "lifes": 1}}}, "by_room.attic.lifes: unknown key"),
    ],
)
def test_a_problem_is_named_by_its_path(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(Home, values, "home.yaml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("home.yaml: ")
    assert "ziggurat schema" in str(caught.value)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"2 problems\n.*pet\.live.*\n.*adress") as caught:
        parse_config(Home, {"adress": "x", "address": "y", "pet": {"name": "cat", "live": 1}})
    assert "required" not in str(caught.value)


def test_good_values_build_the_config_and_it_is_frozen() -> None:
    home = parse_config(Home, {"address": "x", "pet": {"name": "dog"}})
    assert home == Home(address="x", pet=Dog())
    with pytest.raises(pydantic.ValidationError):
        home.address = "y"  # type: ignore[misc]


def test_whole_floats_and_integers_are_accepted_as_numbers() -> None:
    values = {"pet": {"name": "cat", "lives": 1e6}, "by_room": {"attic": {"name": "dog", "weight": 7}}, "height": 2}
    home = parse_config(Home, {"address": "x", **values})
    assert home == Home(address="x", pet=Cat(lives=1_000_000), by_room={"attic": Dog(weight=7.0)}, height=2.0)
    assert type(home.height) is float


def test_a_section_without_a_name_is_of_its_default_class() -> None:
    home = parse_config(Home, {"address": "x", "pet": {"lives": 3}, "window": {"name": "w", "radius": 2}})
    assert home == Home(address="x", pet=Cat(lives=3), window=Round(name="w", radius=2.0))


def test_problems_of_values_from_set_are_marked() -> None:
    values: dict[str, Any] = {"others": [{"name": "cat"}], "lamps": 3}
    given = {set_by_path(values, "others.cat.lives", 0)}
    with pytest.raises(ConfigError) as caught:
        parse_config(Home, {"address": "x", **values}, "home.yaml", given)
    assert caught.value.problem.splitlines() == [
        "home.yaml: 2 problems",
        "  --set others.0.lives: Input should be greater than or equal to 1; received 0",
        "  lamps: Input should be a section with keys; received 3",
    ]
    with pytest.raises(ConfigError) as caught:
        parse_config(Home, {"address": "x", "pet": {"lives": 0}}, "home.yaml", [("pet",)])
    assert caught.value.problem == "--set pet.lives: Input should be greater than or equal to 1; received 0"
    with pytest.raises(ConfigError) as caught:
        parse_config(Home, {"address": "x", "pet": {"name": "cow"}}, "home.yaml", [("pet", "name")])
    assert caught.value.problem == "--set pet.name: unknown 'cow'; allowed: cat, dog"
    with pytest.raises(ConfigError) as caught:
        parse_config(
            Home, {"address": "x", "window": {"kind": "square", "name": "w", "side": 101}}, "f", [("window", "side")]
        )
    assert caught.value.problem == "f: 1 problem\n  window: side 101 is more than 100 (with --set window.side)"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.b", {"a": {"b": 7, "c": 2}, "list": [{"name": "x", "v": 1}]}),
        ("new.deep.key", {"a": {"b": 1, "c": 2}, "list": [{"name": "x", "v": 1}], "new": {"deep": {"key": 7}}}),
        ("list.0.v", {"a": {"b": 1, "c": 2}, "list": [{"name": "x", "v": 7}]}),
        ("list.x.v", {"a": {"b": 1, "c": 2}, "list": [{"name": "x", "v": 7}]}),
        ("list.0", {"a": {"b": 1, "c": 2}, "list": [7]}),
    ],
)
def test_set_by_path(path: str, expected: dict[str, Any]) -> None:
    values: dict[str, Any] = {"a": {"b": 1, "c": 2}, "list": [{"name": "x", "v": 1}]}
    set_by_path(values, path, 7)
    assert values == expected


@pytest.mark.parametrize("path", ["a.b.c", "list.5.v", "list.y.v", "a.b.c.d", "a..b", ".a", "a."])
def test_set_through_something_without_keys_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"--set "):
        set_by_path({"a": {"b": 1}, "list": [{"name": "x"}]}, path, 7)


def problem_of(kind: type[Config], values: dict[str, Any], given: list[tuple[str | int, ...]] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(kind, values, "f", given or [])
    return caught.value.problem


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"tools": [{"name": "cow"}]}, "tools.0.name: unknown 'cow'; allowed: cat, dog"),
        (
            {"tools": ["cat"]},
            "tools.0: Input should be a section with keys, name among them (cat, dog); received 'cat'",
        ),
        ({"doors": [True]}, "doors.0: Input should be a whole number; received True"),
        ({"tools": []}, "tools: needs at least one entry; received []; give one, such as {name: cat}"),
        ({"windows": []}, "windows: needs at least one entry; received []; give one, such as {kind: round, name: …}"),
        ({"doors": []}, "doors: needs at least one entry; received []; leave the key out for its default"),
    ],
)
def test_a_list_is_called_too_short_only_where_it_is(changes: dict[str, Any], line: str) -> None:
    values = {"tools": [{"name": "cat"}], "windows": [{"kind": "round", "name": "w"}], **changes}
    assert problem_of(Shed, values) == f"f: 1 problem\n  {line}"


def test_an_item_is_shown_by_its_name_if_that_is_unique() -> None:
    windows: list[dict[str, Any]] = [
        {"kind": "round", "name": "attic", "radius": "wide"},
        {"kind": "square", "name": "twin", "side": 101},
        {"kind": "round", "name": "twin", "radios": 1},
        {"kind": "round", "name": "a.b", "radios": 1},
        {"kind": "round", "name": "7", "radios": 1},
        {"kind": "round", "radios": 1, "name": 5},
    ]
    tools = [{"name": "dog"}, {"name": "cat", "lives": 0}]
    given: list[tuple[str | int, ...]] = [("windows", 0, "radius")]
    only = {"windows": [{"kind": "round", "name": ["attic"]}], "tools": [{"name": "cat"}]}
    assert problem_of(Shed, only).splitlines()[1].startswith("  windows.0.name: Input should be text")
    assert problem_of(Shed, {"windows": windows, "tools": tools}, given).splitlines() == [
        "f: 8 problems",
        "  tools.1.lives: Input should be greater than or equal to 1; received 0",
        "  --set windows.attic.radius: Input should be a number; received 'wide'",
        "  windows.1: side 101 is more than 100",
        "  windows.2.radios: unknown key; did you mean 'radius'?",
        "  windows.3.radios: unknown key; did you mean 'radius'?",
        "  windows.4.radios: unknown key; did you mean 'radius'?",
        "  windows.5.name: Input should be text, a number in quotes for one; received 5",
        "  windows.5.radios: unknown key; did you mean 'radius'?",
    ]


def test_keys_left_over_from_a_class_replaced_by_set_are_explained() -> None:
    pet: dict[str, Any] = {"name": "cat", "lives": 7}
    values: dict[str, Any] = {"address": "x", "pet": pet, "window": {"kind": "round", "name": "w", "radius": 2}}
    given = [set_by_path(values, "pet.name", "dog"), set_by_path(values, "window.kind", "square")]
    assert problem_of(Home, values, given).splitlines() == [
        "2 problems",
        "  --set window.kind=square: 'square' has no radius; allowed: kind, name, side. "
        "--set window='{kind: square, name: \"w\"}' replaces the whole section",
        "  --set pet.name=dog: 'dog' has no lives; allowed: name, weight. "
        "--set pet='{name: dog}' replaces the whole section",
    ]
    values["pet"] = {"name": "dog"}
    given = [set_by_path(values, "pet.name", "cat"), set_by_path(values, "pet.wieght", 3)]
    values["window"] = {"kind": "round", "name": "w"}
    assert problem_of(Home, values, given) == "--set pet.wieght: unknown key; allowed: lives, name"


def test_a_key_required_by_a_class_chosen_by_set_is_named_with_the_choice() -> None:
    values: dict[str, Any] = {"inside": {"name": "cat", "lives": 7}}
    given = [set_by_path(values, "inside.name", "bird")]
    assert problem_of(Cage, values, given).splitlines() == [
        "2 problems",
        "  inside.song: required key is missing (with --set inside.name)",
        "  --set inside.name=bird: 'bird' has no lives; allowed: dog, name, song. "
        "--set inside='{name: bird, song: …}' replaces the whole section",
    ]


def test_a_tag_is_not_taken_for_a_key_of_another_class() -> None:
    problem = problem_of(Cage, {"inside": {"name": "dog", "lives": 7}})
    assert problem == "f: 1 problem\n  inside.lives: unknown key; allowed: name, weight"
    problem = problem_of(Cage, {"inside": {"name": "bird", "song": "la", "dog": {"lifes": 7}}})
    assert problem == "f: 1 problem\n  inside.dog.lifes: unknown key; did you mean 'lives'?"


def test_newer_keys_count_only_when_they_are_set() -> None:
    class Part(Config):
        NEWER: ClassVar[frozenset[str]] = frozenset({"late"})
        early: int = 1
        late: int = 2

    class Whole(Config):
        NEWER: ClassVar[frozenset[str]] = frozenset({"extra"})
        parts: tuple[Part, ...] = ()
        one: Part = Part()
        extra: Part | None = None

    assert established_values(Whole(parts=(Part(), Part(late=3)))) == {
        "parts": [{"early": 1}, {"early": 1, "late": 3}],
        "one": {"early": 1},
    }
    assert established_values(Whole(extra=Part())) == {"parts": [], "one": {"early": 1}, "extra": {"early": 1}}
