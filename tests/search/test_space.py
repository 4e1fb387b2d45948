"""What a search varies: the space that follows from a config, and a written one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.conftest import MakeExperiment
from ziggurat.core.errors import ConfigError
from ziggurat.search.dimension import Choice, Interval, dimension_of
from ziggurat.search.space import default_space, own_settings, read_space, with_settings


def test_the_space_of_a_deepfm_varies_its_tables_rates_and_mlp(make_experiment: MakeExperiment) -> None:
    space = default_space(make_experiment(training__weight_average=0.98))
    written = {key: dimension.to_json() for key, dimension in space.items()}
    assert written == {
        "embeddings.dim": [4, 8, 16],
        "embeddings.optimizer.lr": {"log": [0.0125, 0.8]},
        "optimizer.lr": {"log": [0.000125, 0.008]},
        "embeddings.l2": {"log": [1e-5, 0.1], "or": 0.0},
        "embeddings.dropout": [0.0, 0.1, 0.2, 0.4],
        "model.deep.dropout": [0.0, 0.1, 0.2, 0.4],
        "model.deep.hidden": [[16, 8], [32, 16], [64, 32]],
        "training.batch_size": [64, 128, 256],
        "training.weight_average": [None, 0.98, 0.99, 0.995, 0.999],
    }


@pytest.mark.parametrize(
    ("model", "present", "absent"),
    [
        ({"name": "wukong", "layers": 1}, {"model.layers", "model.head.bottom.hidden"}, {"model.deep.hidden"}),
        ({"name": "dcn_v2"}, {"model.cross_layers", "model.deep.dropout"}, {"model.layers"}),
        ({"name": "dlrm"}, {"model.top.hidden"}, {"model.deep.hidden"}),
        ({"name": "logistic_regression"}, {"optimizer.lr"}, {"embeddings.dim", "model.deep.hidden"}),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else None,
)
def test_a_space_has_what_the_model_has(
    make_experiment: MakeExperiment, model: dict[str, object], present: set[str], absent: set[str]
) -> None:
    experiment = make_experiment(model=model)
    space = default_space(experiment)
    assert present <= space.keys()
    assert not absent & space.keys()
    for key, value in own_settings(experiment, space).items():
        assert space[key].place(value) is not None, key  # the config itself is a point of its space
        for end in space[key].ends:
            with_settings(experiment, {key: end}).check()


def test_a_written_space_is_read(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    lines = [
        "search:",
        "  space:",
        "    embeddings.l2: {log: [1e-5, 0.1], or: 0}",
        "    model.deep.dropout: [0, 0.2, 0.4]",
        "    training.batch_size: {log: [32, 512]}",
        "    embeddings.init_std: {range: [0.0, 0.1]}",
        "    embeddings.tables.item.dim: [4, 8]",
        "    model.deep.activation: [relu, gelu]",
    ]
    path = tmp_path / "space.yaml"
    path.write_text("\n".join(lines))
    assert read_space(path, make_experiment()) == {
        "embeddings.l2": Interval(1e-5, 0.1, log=True, beside=(0,)),
        "model.deep.dropout": Choice((0, 0.2, 0.4)),
        "training.batch_size": Interval(32, 512, log=True),
        "embeddings.init_std": Interval(0.0, 0.1),
        "embeddings.tables.item.dim": Choice((4, 8)),
        "model.deep.activation": Choice(("relu", "gelu")),
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("optimiser.lr: {log: [1e-4, 1e-2]}", r"there is no section 'optimiser'\n.*did you mean optimizer.lr\?"),
        ("model.deep.dropuot: [0, 0.2]", r"search.space.model.deep.dropuot: .*dropuot.*\n?.*dropout"),
        ("model.deep.dropout: [0, 1.5]", r"model.deep.dropout.*1\.5"),
        ("features.user.min_count: [1, 2]", r"features is the same in all trials.*\n.*for other data"),
        ("training.monitor: [auc, log_loss]", r"is the same in all trials, which are compared"),
        (
            "training: [{epochs: 1, monitor: auc}, {epochs: 1, monitor: ne}]",
            r"holds training.monitor.*one by one, as in",
        ),
        ("training.readers.0: [a, b]", r"is the same in all trials, which are compared"),
        ("model.deep: [{hidden: [8]}, {hidden: [16]}], model.deep.dropout: [0, 0.1]", r"dropout: model.deep is varied"),
        ("model.deep.dropout: [0, 0.1], model.deep: [{hidden: [8]}, {hidden: [16]}]", r"dropout: model.deep is varied"),
        ("model.deep.dropout: [0, 0.0, 0.2]", r"received \[0, 0.0, 0.2\]\n.*each value once"),
        ("training.early_stopping: [{patience: 3}, {min_delta: 0, patience: 3}]", r"are the same\n.*leave one"),
        ("embeddings.dim: {log: [4, 64]}", r"not all whole numbers .* 5 is not\n.*such as \[4, 8, 16, 32, 64\]"),
        ("embeddings.dim: {range: [8, 24]}", r"not all whole numbers .* 9 is not\n.*such as \[8, 16, 24\]"),
        ("optimizer.lr: {log: [0, 1e-2]}", r"begins above 0, received 0\n.*`or: 0` beside log"),
        ("optimizer.lr: {log: [1e-2, 1e-3]}", r"give two finite numbers, the smaller one first"),
        ("optimizer.lr: {choice: [1e-2]}", r"received \{'choice'.*\n.*write \{log: \[LOW, HIGH\]\}"),
        ("optimizer.lr: [0.1]", r"received \[0.1\]\n.*a list of two values or more"),
        ("optimizer.lr: 0.1", r"received 0.1\n"),
    ],
)
def test_a_wrong_space_is_refused_by_key(
    make_experiment: MakeExperiment, tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(f"search: {{space: {{{line}}}}}")
    with pytest.raises(ConfigError, match=rf"(?s)space\.yaml.*{message}"):
        read_space(path, make_experiment())


@pytest.mark.parametrize("text", ["", "space: {optimizer.lr: [1, 2]}", "search: {spaces: {}}", "search: {space: {}}"])
def test_a_file_that_lists_no_space_is_refused(make_experiment: MakeExperiment, tmp_path: Path, text: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"space\.yaml: (.*: )?(expected the key|lists no keys)"):
        read_space(path, make_experiment())


def test_a_value_beside_an_interval_lies_below_it() -> None:
    dimension = dimension_of({"log": [1e-4, 1e-1], "or": 0}, "l2")
    places = [dimension.place(value) for value in (0, 1e-4, 1e-1)]
    assert places == pytest.approx([0.125, 0.25, 1.0])
    assert dimension.place(1e-5) is None
    assert dimension.place("0") is None


def test_numbers_are_compared_by_value() -> None:
    dropouts, whole, switches = Choice((0, 0.2, 0.4)), Interval(1, 20, log=True), Choice((False, 0, "0"))
    assert [dropouts.number(value) for value in (0.0, 0, 0.2, False, "0")] == [0, 0, 1, None, None]
    assert [whole.number(value) for value in (10.0, 10, 10.5, True)] == [10, 10, None, None]
    assert [switches.place(value) for value in (False, 0.0, "0", True)] == [0.0, 0.5, 1.0, None]
    assert Choice(([8, 4], [16, 8])).number([16.0, 8]) == 1


def test_a_value_of_the_config_is_known_by_what_it_means(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    lines = [
        "    model.deep.dropout: [0, 0.2]",
        "    training.early_stopping: [null, {patience: 2}, {patience: 3}]",
        "    model.deep: [{hidden: [8]}, {hidden: [32, 16]}]",
    ]
    experiment = make_experiment(training__early_stopping={"patience": 3})
    path = tmp_path / "space.yaml"
    for kept in (lines[:2], lines[1:]):
        path.write_text("\n".join(["search:", "  space:", *kept]))
        space = read_space(path, experiment)
        own = own_settings(experiment, space)
        assert all(space[key].number(value) is not None for key, value in own.items())
        assert own["training.early_stopping"] == {"patience": 3}
        assert with_settings(experiment, own) == experiment
