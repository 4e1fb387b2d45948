"""Suggestions of similar names, shortened values, and the path in errors of config sections."""

from __future__ import annotations

import pickle

import pytest

from ziggurat.core.errors import ConfigError, InvalidSection, nearest, printable, shorten, within


@pytest.mark.parametrize(
    ("word", "allowed", "close"),
    [
        ("itme", ["item", "user"], "item"),
        ("cta", ["cat", "dog"], "cat"),
        ("ITEM", ["item", "user"], "item"),
        ("bach_size", ["batch_size", "epochs"], "batch_size"),
        ("nope", ["opt", "bin", "home"], None),
        ("logs", ["opt", "lib", "usr"], None),
        ("exp.yaml", ["examples", "export"], None),
        ("learning_rate", ["lr", "betas"], None),
        ("nope.csv", ["shop.csv", "exp.csv"], None),
        ("shp.csv", ["shop.csv", "exp.csv"], "shop.csv"),
        ("exp.yml", ["exp.yaml", "shop.csv"], "exp.yaml"),
        ("item.prce", ["item.name", "item.price"], "item.price"),
        ("x", [], None),
    ],
)
def test_only_really_close_names_are_suggested(word: str, allowed: list[str], close: str | None) -> None:
    assert nearest(word, allowed) == close


def test_quoted_values_are_cut() -> None:
    assert shorten("a" * 100, 10) == "'aaaaaaaa…"
    assert shorten(3.5) == "3.5"


def test_what_is_printed_shows_what_is_invisible() -> None:
    assert printable("a\u202eb\u200b\x1b\nc é") == "a\\u202eb\\u200b\\x1b\nc é"


def test_an_error_survives_a_process_boundary() -> None:
    again = pickle.loads(pickle.dumps(ConfigError("bad", "fix it")))
    assert (type(again), again.problem, again.hint) == (ConfigError, "bad", "fix it")


def test_an_invalid_section_names_its_path_and_survives_a_pickle() -> None:
    with pytest.raises(InvalidSection) as caught, within("model"), within("blocks.0"):
        raise InvalidSection("heads", "3 heads cannot share 8", "give 2")
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, ConfigError)
    assert str(error) == "model.blocks.0.heads: 3 heads cannot share 8\n  hint: give 2"
    with pytest.raises(InvalidSection, match=r"^model: too few$"), within("model"):
        raise ConfigError("too few")
