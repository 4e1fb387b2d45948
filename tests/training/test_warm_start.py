"""A warm start copies rows by value and dense weights that fit from another run, and refuses everything else."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.conftest import MakeExperiment, RecordedNotes, config_values, write_log
from tests.training.test_train import assert_same_bits, tensors
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.errors import ConfigError, RunFolderError
from ziggurat.features.encoders.vocabulary import VocabularyEncoder
from ziggurat.features.transform import Transform
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.run_files import RunFiles

OLD = {"max_steps": 20, "evaluate_every": 10}


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a log and ``old``, a run that was trained on it."""
    folder = tmp_path_factory.mktemp("origin")
    write_log(folder / "log.csv")
    train_old(folder)
    return folder


def train_old(folder: Path, **changes: Any) -> None:
    values = config_values(folder)
    values["training"].update(OLD)
    for path, value in changes.items():
        set_by_path(values, path.replace("__", "."), value)
    api.train(parse_config(Experiment, values), folder / "old", prepared=folder / "prepared")


@pytest.fixture
def warm_start(origin: Path, make_experiment: MakeExperiment) -> Any:
    """Returns a function that warm-starts ``new`` from ``old`` without training it, and returns its tensors."""

    def train_no_step(
        old: Path = origin / "old", *, run: str = "new", start: Any = None, **changes: Any
    ) -> dict[str, Tensor]:
        experiment = make_experiment(training__warm_start={"run": str(old), **(start or {})}, **changes)
        api.train(experiment, run, stop_after=0)
        return tensors(Path(run), 0)

    return train_no_step


def weights(found: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in found.items() if name.startswith(("tables:", "dense:"))}


def cold(make_experiment: MakeExperiment, **changes: Any) -> dict[str, Tensor]:
    """Returns the weights that the seed initialises."""
    api.train(make_experiment(**changes), "cold", stop_after=0)
    return tensors(Path("cold"), 0)


def warm_start_record(folder: str = "new") -> dict[str, Any]:
    """Returns the content of a run's ``warm_start.json``."""
    values = RunFiles.open(Path(folder)).read_json("warm_start.json")
    assert values is not None
    return values


def test_on_the_same_data_the_weights_are_those_of_the_other_run(origin: Path, warm_start: Any) -> None:
    started = warm_start()
    best = int(json.loads((origin / "old/results.json").read_text(encoding="utf-8"))["best_step"])
    theirs = tensors(origin / "old", best)
    assert_same_bits(weights(started), weights(theirs))
    assert torch.count_nonzero(started["table_optimizer:item/sum"]) == 0
    old, new = (
        api.evaluate(folder, "validation", which).compute()
        for folder, which in ((origin / "old", "best"), ("new", "last"))
    )
    assert new == pytest.approx(old, rel=0, abs=0, nan_ok=True)


def test_steps_start_from_zero_and_the_warm_start_is_noted(
    warm_start: Any, origin: Path, make_experiment: MakeExperiment
) -> None:
    progress = RecordedNotes()
    experiment = make_experiment(
        training__warm_start={"run": str(origin / "old"), "checkpoint": 20}, training__max_steps=3
    )
    assert api.train(experiment, "new", progress=progress).step == 3
    line = (
        f"warm start from {origin / 'old'}, step 20: table user: 42 of 42 rows; table item: 62 of 62 rows; "
        "table tags: 10 of 10 rows; dense: 10 tensors"
    )
    assert [note for note in progress.notes if note.startswith("warm start")] == [line]
    assert warm_start_record() == {
        "run": str(origin / "old"), "step": 20, "new_tables": [], "dense": 10, "optimizer": False, "notes": [],
        "tables": {name: {"rows": rows, "taken": rows} for name, rows in (("user", 42), ("item", 62), ("tags", 10))},
    }  # fmt: skip


def test_resuming_does_not_need_the_other_run(origin: Path, make_experiment: MakeExperiment) -> None:
    shutil.copytree(origin / "old", "other")
    experiment = make_experiment(training__warm_start={"run": "other"}, training__max_steps=8)
    api.train(experiment, "straight")
    api.train(experiment, "new", stop_after=4)
    shutil.rmtree("other")
    progress = RecordedNotes()
    assert api.train(experiment, "new", progress=progress).step == 8
    assert not [note for note in progress.notes if note.startswith("warm start")]
    assert_same_bits(tensors(Path("straight"), 8), tensors(Path("new"), 8))
    with pytest.raises(ConfigError, match=r"training\.warm_start\.run: other: no run folder"):
        api.train(experiment, "third")
    assert not Path("third/config.yaml").exists()


def rewrite(path: Path) -> None:
    """Rewrites the log: removes some users and items, renames others, and changes which values are frequent."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    kept = [row for row in rows if row["user"] not in {"u3", "u4"} and int(row["item"]) % 7]
    kept += [row for row in kept if row["user"] in {"u39", "u38"} or row["item"] == "59"] * 4
    for row in kept:
        row["user"] = f"new{row['user']}" if row["user"] in {"u5", "u6", "u7"} else row["user"]
        row["item"] = str(int(row["item"]) + 1000) if int(row["item"]) in range(50, 55) else row["item"]
        row["history"] = "|".join(each for each in row["history"].split("|") if each and int(each) not in range(50, 55))
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, list(rows[0]))
        out.writeheader()
        out.writerows(kept)


def keys(folder: Path, table: str) -> list[Any]:
    encoder = Transform.load(folder / "encoders").encoders[table]
    assert isinstance(encoder, VocabularyEncoder)
    return encoder.keys.to_pylist()


@pytest.mark.parametrize("decay", [None, 0.9])
def test_rows_follow_their_values_into_another_vocabulary(
    tmp_path: Path, make_experiment: MakeExperiment, warm_start: Any, decay: float | None
) -> None:
    train_old(tmp_path, training__weight_average=decay)
    rewrite(tmp_path / "log.csv")
    started, drawn = warm_start(tmp_path / "old", start={"checkpoint": "last"}), cold(make_experiment)
    theirs = tensors(tmp_path / "old", 20)
    prefix = "tables:" if decay is None else "average:tables/"
    for table in ("user", "item", "tags"):
        ours, old = keys(Path("new"), table), keys(tmp_path / "old", table)
        new, before, initial = started[f"tables:{table}"], theirs[f"{prefix}{table}"], drawn[f"tables:{table}"]
        assert torch.equal(new[:2], before[:2])  # missing and unknown
        for place, key in enumerate(ours, 2):
            assert torch.equal(new[place], before[2 + old.index(key)] if key in old else initial[place]), (table, key)
        assert warm_start_record()["tables"][table] == {"rows": 2 + len(ours), "taken": 2 + len({*ours} & {*old})}
    ours, old = keys(Path("new"), "user"), keys(tmp_path / "old", "user")
    assert ours[:2] != old[:2]
    assert {"newu5", "newu6", "newu7"} <= {*ours} - {*old}
    assert warm_start_record()["notes"] == ["scaled by other figures there: age"]


def test_only_listed_tables_are_copied(warm_start: Any, origin: Path, make_experiment: MakeExperiment) -> None:
    started = warm_start(start={"tables": ["item"], "dense": False})
    drawn, theirs = cold(make_experiment), tensors(origin / "old", 20)
    assert torch.equal(started["tables:item"], theirs["tables:item"])
    for name in weights(drawn).keys() - {"tables:item"}:
        assert torch.equal(started[name], drawn[name]), name
    record = warm_start_record()
    assert (record["dense"], list(record["tables"]), record["new_tables"]) == (None, ["item"], [])


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adagrad", "adam"])
def test_optimizer_states_follow_their_rows(
    tmp_path: Path, make_experiment: MakeExperiment, warm_start: Any, optimizer: str
) -> None:
    rows = {"embeddings__optimizer": {"name": optimizer, "lr": 0.01}}
    train_old(tmp_path, **rows)
    rewrite(tmp_path / "log.csv")
    started = warm_start(tmp_path / "old", start={"checkpoint": 20, "optimizer": True}, **rows)
    theirs = tensors(tmp_path / "old", 20)
    ours, old = keys(Path("new"), "user"), keys(tmp_path / "old", "user")
    states = {name for name in theirs if name.startswith("table_optimizer:user/")}
    assert len(states) == (3 if optimizer == "adam" else 1)
    for name in states:
        if theirs[name].ndim == 0:
            assert started[name] == theirs[name] == 20
            continue
        for place, key in enumerate(ours, 2):
            expected = theirs[name][2 + old.index(key)] if key in old else torch.zeros_like(theirs[name][0])
            assert torch.equal(started[name][place], expected), (name, key)
    dense = {name: tensor for name, tensor in theirs.items() if name.startswith("dense_optimizer:")}
    assert dense
    assert_same_bits({name: started[name] for name in dense}, dense)


def test_the_weight_average_starts_with_the_copied_weights(
    tmp_path: Path, warm_start: Any, make_experiment: MakeExperiment
) -> None:
    train_old(tmp_path)
    started = warm_start(tmp_path / "old", start={"checkpoint": 20}, training__weight_average=0.99)
    theirs = tensors(tmp_path / "old", 20)
    for name in weights(theirs):
        assert torch.equal(started[f"average:{name.replace(':', '/', 1)}"], theirs[name]), name


def test_a_table_that_the_other_run_lacks_is_initialised_from_the_seed(
    warm_start: Any, make_experiment: MakeExperiment, origin: Path
) -> None:
    features = [*config_values(origin)["features"], {"name": "note", "kind": "categorical"}]
    started = warm_start(start={"dense": False}, features=features)
    assert warm_start_record()["new_tables"] == ["note"]
    assert torch.equal(started["tables:note"], cold(make_experiment, features=features)["tables:note"])
    with pytest.raises(ConfigError, match=r"has no table note; it has user, item, tags") as caught:
        warm_start(start={"dense": False, "tables": ["user", "note"]}, run="other", features=features)
    assert "training.warm_start.tables=[user]" in str(caught.value)


def features_but(position: int, **changes: Any) -> list[dict[str, Any]]:
    features = config_values(Path())["features"]
    features[position] |= changes
    return features


def swapped(first: int, second: int) -> list[dict[str, Any]]:
    features = config_values(Path())["features"]
    features[first], features[second] = features[second], features[first]
    return features


HASHED = {"name": "hash", "rows": 50}
BUCKETS = {"name": "bucketise", "bins": 4}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    (
        {}, {"embeddings__dim": 16}, {},
        r"are of another width\n  table user: 8 floats there, 16 floats here\n  table item: 8 .*\n  table tags: 8 ",
    ),
    (
        {}, {"embeddings__tables": {"item": {"vectors": 2, "dim": 4}}}, {},
        r"another width\n  table item: 8 floats there, 2 vectors of 4 floats here\n.*warm_start.tables=\[user, tags\]",
    ),
    ({}, {"features": features_but(0, encoder=HASHED)}, {}, r"table user: its encoder is vocabulary there, hash here"),
    (
        {"features": features_but(0, encoder=HASHED)}, {"features": features_but(0, encoder={**HASHED, "rows": 60})},
        {}, r"stand for something else\n  table user: its hash differs: rows 50 there, 60 here",
    ),
    (
        {"features": features_but(2, transforms=[BUCKETS])},
        {"features": features_but(2, transforms=[{"name": "bucketise", "boundaries": [20, 40]}])},
        {}, r"its buckets differ: 3 boundaries \(.*\) there, 2 boundaries \(20, 40\) here\n.*=\[user, item, tags",
    ),
    ({}, {"features": swapped(0, 1)}, {}, r"dense: field 1 is 'user' there, 'item' here: weights would meet"),
    (
        {"data__labels": [{"name": "click"}, {"name": "buy"}]},
        {"data__labels": [{"name": "buy"}, {"name": "click"}]},
        {}, r"dense: label 1 is 'click' there, 'buy' here",
    ),
    (
        {}, {"features": features_but(2, transforms=[{"name": "log"}])}, {},
        r"dense: number 'age' passes through fill, standardise there, fill, log here",
    ),
    ({}, {"features": features_but(2, name="years", column="age")}, {}, r"number 1 is 'age' there, 'years' here"),
    (
        {}, {"features": [*features_but(0), {"name": "note", "kind": "categorical"}]}, {},
        r"dense: field 3 is 'tags' there, 'note' here",
    ),
    ({}, {"model__deep__hidden": [48, 16]}, {}, r"the model of .* is another: model\..* is \[32, \d+\] there, \[48, "),
    (
        {}, {"embeddings__optimizer": {"name": "adagrad"}}, {"optimizer": True},
        r"other states\n  table user: rowwise_adagrad with 1 of sum a row there, adagrad with 8 of sum a row here",
    ),
    ({}, {"optimizer": {"name": "sgd"}}, {"optimizer": True}, r"the dense optimizer is adam in .*, sgd here"),
    ({}, {}, {"checkpoint": 7}, r"training\.warm_start\.checkpoint: .*no checkpoint of step 7; there are"),
    ({}, {}, {"tables": ["usr"]}, r"training\.warm_start\.tables: no feature uses table 'usr'; did you mean 'user'"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "start", "message"), REFUSED, ids=range(len(REFUSED)))
def test_incompatible_weights_are_refused_by_name(
    origin: Path,
    tmp_path: Path,
    warm_start: Any,
    old: dict[str, Any],
    new: dict[str, Any],
    start: dict[str, Any],
    message: str,
) -> None:
    folder = origin
    if old:
        train_old(tmp_path, **old)
        folder = tmp_path
    with pytest.raises(ConfigError, match=message):
        warm_start(folder / "old", start=start, **new)
    assert not Path("new/warm_start.json").exists()


def test_a_warm_start_can_be_corrected_before_the_first_checkpoint(
    warm_start: Any, make_experiment: MakeExperiment, origin: Path
) -> None:
    with pytest.raises(ConfigError, match="another width"):
        warm_start(embeddings__tables={"item": {"dim": 12}})
    warm_start(embeddings__tables={"item": {"dim": 12}}, start={"tables": ["user"], "dense": False})
    assert list(warm_start_record()["tables"]) == ["user"]
    with pytest.raises(
        RunFolderError, match=r"training\.warm_start\.tables: the run has \['user'\], you ask for 'all'"
    ):
        warm_start(embeddings__tables={"item": {"dim": 12}}, start={"dense": False})


def test_starting_again_without_a_warm_start_removes_its_record(
    warm_start: Any, make_experiment: MakeExperiment
) -> None:
    warm_start()
    shutil.rmtree("new/checkpoints")
    api.train(make_experiment(), "new", stop_after=0)
    assert not Path("new/warm_start.json").exists()


def test_a_run_does_not_start_from_itself(make_experiment: MakeExperiment) -> None:
    with pytest.raises(ConfigError, match=r"new is the run that is to start"):
        api.train(make_experiment(training__warm_start={"run": "new"}), "new")


def test_encoders_of_another_fit_are_noticed(tmp_path: Path, origin: Path, warm_start: Any) -> None:
    shutil.copytree(origin / "old", tmp_path / "old")
    rewrite(tmp_path / "log.csv")
    api.prepare(config_of(tmp_path), tmp_path / "another")
    shutil.rmtree(tmp_path / "old/encoders")
    shutil.copytree(tmp_path / "another/encoders", tmp_path / "old/encoders")
    with pytest.raises(ConfigError, match=r"old/encoders/transform\.json: belongs to another transform"):
        warm_start(tmp_path / "old")
    shutil.rmtree(tmp_path / "old/encoders")
    with pytest.raises(ConfigError, match=r"transform\.json: not found[\s\S]*restore the folder `encoders`"):
        warm_start(tmp_path / "old")


def config_of(folder: Path) -> Experiment:
    return parse_config(Experiment, config_values(folder))


def test_a_warm_start_that_copies_nothing_is_refused(make_experiment: MakeExperiment) -> None:
    with pytest.raises(ConfigError, match=r"training\.warm_start: .*nothing is copied"):
        make_experiment(training__warm_start={"run": "old", "tables": [], "dense": False})
    with pytest.raises(ConfigError, match=r"training\.warm_start\.tables: expected all, or a list as in \[user\]"):
        make_experiment(training__warm_start={"run": "old", "tables": "user"})
    with pytest.raises(ConfigError, match=r"training\.warm_start\.checkpoint: expected best, last, or a step"):
        make_experiment(training__warm_start={"run": "old", "checkpoint": "newest"})
