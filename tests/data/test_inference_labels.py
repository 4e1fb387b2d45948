"""Labels that init finds: rates, quantities, counts, ratings, events; and what it says where there is none."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from ziggurat.cli.init import draft_config
from ziggurat.core.errors import ConfigError
from ziggurat.data.inference.roles import Inference, infer
from ziggurat.data.readers.source_files import resolve_files
from ziggurat.training.api import prepare
from ziggurat.training.experiment import load_experiment


def infer_files(folder: Path, *names: str, label: str | None = None) -> Inference:
    return infer(resolve_files(names, folder, [".csv"]), label)


AMOUNTS = [0.0 if k % 2 else 1.5 * (k % 11) for k in range(80)]
WATCH = [3.5 + 1000.0 * (k % 40 == 0) + k / 7 for k in range(80)]


@pytest.mark.parametrize(
    ("name", "values", "requested", "kind", "loss", "says"),
    [
        ("ctr", [k % 19 / 20 for k in range(80)], None, "soft", None, "from 0 to 1: a rate"),
        ("ctr", [k % 19 / 20 for k in range(80)], "ctr", "soft", None, "as asked; from 0 to 1: a rate"),
        ("revenue", AMOUNTS, None, "regression", "tweedie", "an amount that is most often 0, up to 15"),
        (
            "watch",
            WATCH,
            "watch",
            "regression",
            None,
            "a quantity, 3.643 … 1009, learnt by squared error; {name: log1p}",
        ),
        ("plays", [1 + k % 50 for k in range(80)], "plays", "regression", "poisson", "a count, 1 … 50"),
        ("temperature", [20 + k % 9 for k in range(80)], "temperature", "regression", None, "a quantity, 20 … 28"),
    ],
)
def test_numbers_are_not_cut_in_two(
    name: str, values: list[float], requested: str | None, kind: str, loss: str | None, says: str, tmp_path: Path
) -> None:
    pl.DataFrame({"shop": [f"s{k % 7}" for k in range(80)], name: values}).write_parquet(tmp_path / "a.parquet")
    (label,) = infer_files(tmp_path, "a.parquet", label=requested).labels
    assert (label.profile.name, label.kind, label.loss, label.at_least) == (name, kind, loss, None)
    for part in says.split("; "):
        assert part in label.reason


def test_a_rating_stays_binary_and_offers_its_other_kinds(tmp_path: Path) -> None:
    pl.DataFrame({"film": [f"f{k % 7}" for k in range(80)], "rating": [1 + k % 5 for k in range(80)]}).write_parquet(
        tmp_path / "a.parquet"
    )
    for requested in (None, "rating"):
        (label,) = infer_files(tmp_path, "a.parquet", label=requested).labels
        assert (label.kind, label.at_least) == ("binary", 4)
        assert "; `kind: ordinal` or `kind: regression` in place of `at_least` predicts" in label.reason


@pytest.mark.parametrize(("step", "kinds"), [(1, ["ordinal", "regression"]), (0.5, ["regression"])])
def test_the_kinds_that_are_offered_for_a_rating_can_be_prepared(step: float, kinds: list[str], tmp_path: Path) -> None:
    stars = [step * (1 + k % round(5 / step)) for k in range(200)]
    lines = ["film,rating:float", *(f"f{k % 7},{each:g}" for k, each in enumerate(stars))]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    text = draft_config(str(tmp_path / "a.csv"))
    assert "at_least: 4}" in text
    assert re.findall(r"`kind: (\w+)`", text) == kinds
    for kind in ["binary", *kinds]:
        experiment = text.replace("at_least: 4}", f"kind: {kind}}}") if kind != "binary" else text
        (tmp_path / "exp.yaml").write_text(experiment)
        prepare(load_experiment(tmp_path / "exp.yaml"), tmp_path / kind)


@pytest.mark.parametrize(
    ("events", "positive"),
    [
        (["impression", "click"], "click"),
        (["Impression", "Click", "Purchase"], "Click"),
        (["pv", "cart", "fav", "buy"], "buy"),
        (["view", "add_to_cart", "purchase"], "purchase"),
    ],
)
def test_one_event_of_a_column_of_events_is_the_label(events: list[str], positive: str, tmp_path: Path) -> None:
    what = [events[k % len(events)] for k in range(80)]
    pl.DataFrame({"user": [k % 9 for k in range(80)], "item": [k % 13 for k in range(80)], "what": what}).write_parquet(
        tmp_path / "a.parquet"
    )
    found = infer_files(tmp_path, "a.parquet")
    (label,) = found.labels
    assert (label.profile.name, label.equals, label.name) == ("what", positive, positive)
    assert "what" not in [feature.profile.name for feature in found.features]


def test_clicks_out_of_impressions_are_a_rate(tmp_path: Path) -> None:
    columns = {
        "ad": [k % 9 for k in range(80)],
        "clicks": [k % 3 for k in range(80)],
        "impressions": [3 + k % 8 for k in range(80)],
    }
    pl.DataFrame(columns).write_parquet(tmp_path / "a.parquet")
    found = infer_files(tmp_path, "a.parquet")
    (label,) = found.labels
    assert (label.name, label.kind, label.columns) == ("rate", "soft", ("clicks", "impressions"))
    assert [feature.profile.name for feature in found.features] == ["ad"]


def test_positives_alone_are_told_what_is_missing(tmp_path: Path) -> None:
    columns = {"user": [k % 9 for k in range(80)], "artist": [f"a{k % 13}" for k in range(80)]}
    pl.DataFrame(columns).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="nothing says what a user did not do") as caught:
        infer_files(tmp_path, "a.parquet")
    assert "negatives: {name: uniform, user: user, item: artist}" in caught.value.hint
    assert "--label COLUMN; columns: user, artist" in caught.value.hint
    pl.DataFrame(columns | {"plays": [1 + k % 40 for k in range(80)]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="with a count in 'plays'") as caught:
        infer_files(tmp_path, "a.parquet")
    assert "--label plays` (Poisson regression)" in caught.value.hint


def test_a_column_that_may_be_the_label_is_named(tmp_path: Path) -> None:
    people = {"user_id": [k % 9 for k in range(80)], "item_id": [k % 13 for k in range(80)]}
    price = {"price": [0.5 + k % 11 for k in range(80)]}
    words = ["ja" if k % 3 else "nein" for k in range(80)]
    for columns, says, advice in (
        ({"klick": words}, "'klick' holds two values, 'ja' and 'nein'", "--label klick; if each row is a positive, "),
        ({"klick": words, "neu": words}, "; 'neu' holds two values", "if one of them is the label, name it"),
        ({"click": ["x" if k % 2 else "" for k in range(80)]}, "'click' holds 'x', or nothing in 50%", "write 0 where"),
    ):
        pl.DataFrame({**people, **columns, **price}).write_csv(tmp_path / "a.csv")
        with pytest.raises(ConfigError) as caught:
            infer_files(tmp_path, "a.csv")
        assert says in caught.value.problem
        assert "each row seems" not in caught.value.problem
        assert advice in caught.value.hint
    with pytest.raises(
        ConfigError, match=r"one value only, 'x'\n.*write 0 where it is empty, and 1 elsewhere; or name"
    ):
        infer_files(tmp_path, "a.csv", label="click")
    pl.DataFrame({**people, "klick": words, **price}).write_csv(tmp_path / "a.csv")
    assert infer_files(tmp_path, "a.csv", label="klick").labels[0].equals == "ja"


def test_a_time_or_a_quantity_is_no_item_of_positives_alone(tmp_path: Path) -> None:
    columns = {
        "customer_id": [k % 9 for k in range(80)],
        "date": [19970101 + k % 28 for k in range(80)],
        "number_of_records": [1 + k % 5 for k in range(80)],
        "value": [k + 0.25 for k in range(80)],
    }
    pl.DataFrame(columns).write_csv(tmp_path / "a.csv")
    with pytest.raises(ConfigError, match="no column looks like a label") as caught:
        infer_files(tmp_path, "a.csv")
    assert "negatives" not in caught.value.hint
    pl.DataFrame(columns | {"film": [f"f{k % 13}" for k in range(80)]}).write_csv(tmp_path / "a.csv")
    with pytest.raises(ConfigError) as caught:
        infer_files(tmp_path, "a.csv")
    assert "negatives: {name: uniform, user: customer_id, item: film}" in caught.value.hint


def test_what_describes_a_person_is_no_label_for_its_place(tmp_path: Path) -> None:
    rest = {"hours": [k / 7 for k in range(80)], "grade": [("low", "mid", "high")[k % 3] for k in range(80)]}
    people = ["woman" if k % 3 else "man" for k in range(80)]
    for name in ("gender", "Sex"):
        pl.DataFrame({name: people} | rest).write_parquet(tmp_path / "a.parquet")
        with pytest.raises(ConfigError, match="no column looks like a label"):
            infer_files(tmp_path, "a.parquet")
    (label,) = infer_files(tmp_path, "a.parquet", label="Sex").labels
    assert label.equals == "man"
    (label,) = infer_files(tmp_path, "a.parquet", label="grade").labels
    assert "one of 3 values, the second most frequent; `equals` can name another" in label.reason


def test_numbered_labels_are_all_labels(tmp_path: Path) -> None:
    inputs = {f"Att{n}": [(k * n) % 17 / 7 for k in range(80)] for n in range(1, 5)}
    classes = {f"Class{n}": [int(k % (n + 1) == 0) for k in range(80)] for n in range(1, 4)}
    pl.DataFrame(inputs | classes).write_csv(tmp_path / "a.csv")
    found = infer_files(tmp_path, "a.csv")
    assert [label.profile.name for label in found.labels] == ["Class1", "Class2", "Class3"]
    assert [feature.profile.name for feature in found.features] == list(inputs)
    one_of = {"Class": [k % 5 for k in range(80)], "Class4": [k % 7 for k in range(80)]}
    pl.DataFrame(inputs | one_of | {"Class9": classes["Class1"]}).write_csv(tmp_path / "b.csv")
    assert [label.profile.name for label in infer_files(tmp_path, "b.csv").labels] == ["Class9"]
    pl.DataFrame(classes).write_csv(tmp_path / "c.csv")  # nothing else to learn from
    assert [label.profile.name for label in infer_files(tmp_path, "c.csv").labels] == ["Class1"]


def test_an_id_as_a_label_is_doubted(tmp_path: Path) -> None:
    rows = "".join(f"{k % 90},{k % 7},{k % 5},{k % 2}\n" for k in range(400))
    (tmp_path / "log.csv").write_text("user,item_id,clicks,click\n" + rows)
    for column, doubted in {"user": True, "item_id": True, "clicks": False}.items():
        text = draft_config(tmp_path / "log.csv", column)
        assert (
            "as asked; its name is that of an id, which is no quantity: is it the label?; a count" in text
        ) is doubted


def test_one_value_is_no_several(tmp_path: Path) -> None:
    rows = "".join(f"{k % 90},{'x' if k % 9 else ''},{k % 2}\n" for k in range(400))
    (tmp_path / "log.csv").write_text("user,shop,click\n" + rows)
    assert "# 1 value; 11% missing\n" in draft_config(tmp_path / "log.csv")
