"""Lists in brackets are prepared as lists if the config declares them, and rejected with a hint otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from feature_kit import Experiment, experiment

from ziggurat.core.errors import ConfigError, DataError
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.features.preparation.prepare import prepare
from ziggurat.features.preparation_plan import fingerprint
from ziggurat.features.tables import resolve_tables

TRAIN_ALL = {"split": {"name": "random", "validation": 0, "test": 0}}
CELLS = ['"[240, 132, 282]"', "[]", '"[132, 282]"', "[240]"]


def config(folder: Path, cells: list[str], **feature: Any) -> Experiment:
    """Writes a log of these cells into ``folder``; returns the configs that read it."""
    lines = [f"{cell},{row % 2}" for row, cell in enumerate(cells)]
    (folder / "log.csv").write_text("hist,click\n" + "\n".join(lines) + "\n")
    return experiment([{"name": "hist", "kind": "bag", **feature}], folder=str(folder), **TRAIN_ALL)


def ids(parsed: Experiment, folder: Path) -> list[list[int]]:
    train = Dataset(prepare(parsed.data, parsed.features, folder)).split("train")
    return train.read(0).to_pydict()["hist"]


@pytest.mark.parametrize("kind", ["integer", "text"])
def test_lists_in_brackets_equal_lists_without_brackets(kind: str, tmp_path: Path) -> None:
    listed = config(tmp_path, CELLS, delimiter=",", brackets=True, type=kind)
    found = ids(listed, tmp_path / "listed")
    plain = config(tmp_path, ['"240,132,282"', "", '"132,282"', "240"], delimiter=",", type=kind)
    assert found == ids(plain, tmp_path / "plain")
    assert [len(row) for row in found] == [3, 0, 2, 1]
    assert len({value for row in found for value in row}) == 3


@pytest.mark.parametrize("delimiter", [",", "|"])
def test_undeclared_brackets_are_rejected(delimiter: str, tmp_path: Path) -> None:
    parsed = config(tmp_path, CELLS, delimiter=delimiter)
    with pytest.raises(DataError, match=r"feature 'hist': every cell .* such as '\[240, 132, 282\]'") as caught:
        prepare(parsed.data, parsed.features, tmp_path / "prepared")
    assert "brackets: true" in str(caught.value)


@pytest.mark.parametrize("cells", [["[a]|[b]", "[b]", "[a]|[c]|[b]"], ["[a", "b]", "[c|d]"], ["a[0]|b", "c", "d"]])
def test_brackets_that_belong_to_ids_are_kept(cells: list[str], tmp_path: Path) -> None:
    parsed = config(tmp_path, cells)
    assert [len(row) for row in ids(parsed, tmp_path / "prepared")] == [cell.count("|") + 1 for cell in cells]


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ({"brackets": True}, 'brackets: say what separates the ids within them, for example delimiter: ","'),
        ({"brackets": True, "delimiter": ", "}, "received delimiter ', '; one character, no quote and no bracket"),
        ({"brackets": True, "delimiter": "]"}, "received delimiter '\\]'"),
    ],
)
def test_brackets_need_a_valid_delimiter(feature: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, CELLS, **feature)


def test_a_column_is_either_in_brackets_or_not(tmp_path: Path) -> None:
    feature = {"kind": "bag", "column": "hist", "delimiter": ","}
    parsed = experiment(
        [{"name": "a", **feature, "brackets": True}, {"name": "b", **feature}], folder=str(tmp_path), **TRAIN_ALL
    )
    with pytest.raises(ConfigError, match="feature 'a' reads lists in brackets, feature 'b' reads plain values"):
        prepare(parsed.data, parsed.features, tmp_path / "prepared")


def test_fingerprints_from_before_the_key_existed_stay_valid() -> None:
    features = [
        {"name": name, "kind": kind, "delimiter": ","} for name, kind in (("tags", "bag"), ("hist", "sequence"))
    ]
    parsed = experiment(features)
    before = "1e45f17bdaf18562c41aaa93942dbbe602a8baeaf4adcf1ff214bc0e2c7c4d11"
    assert fingerprint(parsed.data, parsed.features, ["x"], resolve_tables(parsed.features)) == before
    listed = experiment([{**features[0], "brackets": True}, features[1]])
    assert fingerprint(listed.data, listed.features, ["x"], resolve_tables(listed.features)) != before
