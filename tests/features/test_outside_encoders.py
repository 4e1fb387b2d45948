"""Encoders from outside the package: preparation names their mistakes, and changes of their code are noticed."""

from __future__ import annotations

import json
import sys
import types
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from feature_kit import Experiment, block, experiment, write_csv

from ziggurat.core.errors import DataError, FeatureError, ZigguratError
from ziggurat.core.files import write_json
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.extension import Encoder, EncoderSettings, Ids, State, ValueCounts
from ziggurat.extension_testing import check_encoder
from ziggurat.features.encoders.files import encoder_settings, load_encoder
from ziggurat.features.encoders.origin import same_fit
from ziggurat.features.preparation.prepare import ENCODERS, prepare
from ziggurat.features.saved_transform import SavedTransform
from ziggurat.features.transform import Transform

MODULE = "own_encoders"
TEXTS = ["red_1", "green_2", "blue_3", "red_4"]


@dataclass(frozen=True)
class Salted(Encoder):
    """Row 0: missing; then a hash of text and salt."""

    buckets: int
    salt: int

    class Config(EncoderSettings):
        version: ClassVar[int] = 1
        counts_values: ClassVar[bool] = False

        buckets: int = 20
        salt: int = 5

        def fit(self, counts: ValueCounts | None) -> Encoder:
            return Salted(self.buckets, self.salt)

        @classmethod
        def encoder_class(cls) -> type[Encoder]:
            return Salted

    @property
    def rows(self) -> int:
        return 1 + self.buckets

    @property
    def unknown_rows(self) -> range:
        return range(0)

    def transform(self, values: pa.Array) -> Ids:
        hashes = [zlib.crc32(f"{self.salt} {value}".encode()) for value in values.to_pylist()]
        return 1 + np.array(hashes, np.int64) % self.buckets

    def to_state(self) -> State:
        return {"buckets": self.buckets, "salt": self.salt}, {}

    @classmethod
    def from_state(cls, figures: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Self:
        assert figures.keys() == {"buckets", "salt"}, "it gets what to_state returned, and nothing else"
        return cls(figures["buckets"], figures["salt"])


def variant(name: str, fit: Any = None, **members: Any) -> type[Salted]:
    """Returns a subclass of :class:`Salted` with other members, and with a config that fits it."""
    kind: Any = type(name, (Salted,), members)

    class Config(Salted.Config):
        def fit(self, counts: ValueCounts | None) -> Encoder:
            return kind(self.buckets, self.salt) if fit is None else fit(self, counts, kind)

        @classmethod
        def encoder_class(cls) -> type[Encoder]:
            return kind

    kind.Config = Config
    return kind


def raising(error: Exception) -> Any:
    def method(*_: Any) -> Any:
        raise error

    return method


def counted(self: Salted, values: pa.Array) -> Ids:
    """Ids by order of appearance, as if each call had a vocabulary of its own."""
    return np.arange(len(values)) % self.buckets


def no_new_values(self: Salted, values: pa.Array) -> Ids:
    known = {text: row for row, text in enumerate(TEXTS)}
    return np.array([known[value] for value in values.to_pylist()], np.int64)


def without_salt(cls: Any, figures: dict[str, Any], arrays: Any) -> Salted:
    return cls(figures["buckets"], 0)


def without_buckets(cls: Any, figures: dict[str, Any], arrays: Any) -> Salted:
    return cls(10, figures["salt"])


ids_of = Salted.transform
FAULTY: dict[str, tuple[type[Salted], str]] = {
    "Beyond": (
        variant("Beyond", transform=lambda self, values: ids_of(self, values) + 50),
        r"`transform` gives the value 'red_1' the id \d\d; allowed are 0 to 20 \(`rows` is 21\)",
    ),
    "Negative": (
        variant("Negative", transform=lambda self, values: ids_of(self, values) - 30),
        r"gives the value 'red_1' the id -\d+; allowed are 0 to 20",
    ),
    "Float": (
        variant("Float", transform=lambda self, values: ids_of(self, values).astype(float)),
        r"`transform` returned numbers of dtype float64; expected a numpy array of 4 whole numbers",
    ),
    "AList": (
        variant("AList", transform=lambda self, values: ids_of(self, values).tolist()),
        r"`transform` returned \[.*\] \(list\); expected a numpy array",
    ),
    "Short": (
        variant("Short", transform=lambda self, values: ids_of(self, values)[:-1]),
        r"`transform` returned an array of shape \(3,\); expected a numpy array of 4 whole numbers",
    ),
    "TwoD": (
        variant("TwoD", transform=lambda self, values: np.stack([ids_of(self, values)] * 2, 1)),
        r"`transform` returned an array of shape \(4, 2\)",
    ),
    "Nothing": (variant("Nothing", transform=lambda self, values: None), r"`transform` returned None \(NoneType\)"),
    "Raises": (
        variant("Raises", transform=raising(ValueError("my own"))),
        r"`transform` raised ValueError: my own\n .*test_outside_encoders.py, line \d+, in method",
    ),
    "FitNone": (variant("FitNone", fit=lambda *_: None), "`fit` returned None, which lacks rows, unknown_rows"),
    "FitClass": (variant("FitClass", fit=lambda *_: Salted), "`fit` returned the class Salted, not an object of it"),
    "FitRaises": (
        variant("FitRaises", fit=lambda self, counts, kind: counts.values),
        r"`fit` raised AttributeError.*\n[\s\S]*hint: correct that code; as its Config has counts_values = False",
    ),
    "NoRows": (variant("NoRows", rows=property(lambda self: 0)), "`rows` is 0; expected a whole number from 1 to 2"),
    "MethodRows": (variant("MethodRows", rows=lambda self: 21), "`rows` is <bound method"),
    "FarUnknown": (
        variant("FarUnknown", unknown_rows=property(lambda self: range(20, 22))),
        r"`unknown_rows` is range\(20, 22\); expected consecutive rows of range\(21\), or range\(0\)",
    ),
    "NoPair": (variant("NoPair", to_state=lambda self: {"salt": 5}), r"`to_state` returned \{'salt': 5\}, which is no"),
    "ASet": (
        variant("ASet", to_state=lambda self: ({"buckets": {1, 2}}, {})),
        r"`to_state`: \['buckets'\] is \{1, 2\} \(set\), which JSON cannot hold",
    ),
    "AnInt64": (
        variant("AnInt64", to_state=lambda self: ({"buckets": [np.int64(3)]}, {})),
        r"`to_state`: \['buckets'\]\[0\] is .*3.* \(int64\), which JSON cannot hold",
    ),
    "NotFinite": (variant("NotFinite", to_state=lambda self: ({"a": float("nan")}, {})), r"\['a'\] is nan, which JSON"),
    "NumberKeys": (
        variant("NumberKeys", to_state=lambda self: ({"rows": {1: "a"}}, {})),
        r"\['rows'\] has the key 1; JSON has texts as keys",
    ),
    "OwnKey": (
        variant("OwnKey", to_state=lambda self: ({"import": 1}, {})),
        "uses the key 'import', which is ziggurat",
    ),
    "Objects": (
        variant("Objects", to_state=lambda self: ({}, {"keys": np.array(["a"], object)})),
        r"the array 'keys' has dtype object; allowed: bool, int8",
    ),
    "Forgets": (
        variant("Forgets", from_state=classmethod(without_salt)),
        r"`from_state` does not restore what `to_state` saved: the value '\w+' had the id \d+, it has \d+",
    ),
    "ForgetsRows": (
        variant("ForgetsRows", from_state=classmethod(without_buckets)),
        r"`from_state` does not restore what `to_state` saved: `rows` was 21, it is 11",
    ),
    "ForgetsKey": (
        variant("ForgetsKey", to_state=lambda self: ({"buckets": 3}, {})),
        r"its saved state cannot be read back: .*`from_state` fails on what `to_state` saved: AssertionError",
    ),
    "RestoresNone": (
        variant("RestoresNone", from_state=classmethod(lambda cls, figures, arrays: None)),
        "`from_state` returned None, which lacks rows",
    ),
    "ByPlace": (
        variant("ByPlace", transform=counted),
        r"`transform` gives the value 'red_1' the id 0 in one call and 3 in another",
    ),
    "NoNewValues": (
        variant("NoNewValues", transform=no_new_values),
        r"`transform` fails for '\w+': KeyError: '\w+'\n .*in no_new_values",
    ),
}


@pytest.fixture(autouse=True)
def own_encoders() -> Iterator[types.ModuleType]:
    module: Any = types.ModuleType(MODULE)
    module.Salted = Salted
    for name, (kind, _) in FAULTY.items():
        setattr(module, name, kind)
    sys.modules[MODULE] = module
    yield module
    del sys.modules[MODULE]


def parsed(folder: Path, name: str = "Salted", **settings: int) -> Experiment:
    if not (folder / "log.csv").exists():
        write_csv(folder / "log.csv", {"colour": TEXTS * 5, "click": [0, 1] * 10})
    encoder = {"import": f"{MODULE}:{name}", **settings}
    return experiment(
        [{"name": "colour", "kind": "categorical", "encoder": encoder}],
        folder=str(folder),
        split={"name": "random", "validation": 0.2, "test": 0.2},
    )


def prepared(folder: Path, name: str = "Salted", **settings: int) -> Path:
    found = parsed(folder, name, **settings)
    return prepare(found.data, found.features, folder / "prepared")


@pytest.mark.parametrize("name", FAULTY)
def test_a_mistake_in_an_encoder_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(ZigguratError, match=FAULTY[name][1]) as caught:
        prepared(tmp_path, name)
    assert caught.value.problem.startswith(f"table 'colour': encoder {MODULE}:{name}: ")
    assert caught.value.hint
    assert not (tmp_path / "prepared" / "manifest.json").exists()


@pytest.mark.parametrize("name", sorted(FAULTY.keys() - {"FitRaises"}))  # whose own exception is shown
def test_the_contract_check_finds_it_as_well(name: str) -> None:
    with pytest.raises(ZigguratError):
        check_encoder(FAULTY[name][0].Config(), TEXTS)


def test_the_contract_check_finds_what_preparation_cannot() -> None:
    def by_order(self: Any, counts: ValueCounts, kind: Any) -> Encoder:
        return kind(self.buckets, len(str(counts.values[0])))

    ordered: Any = variant("Ordered", fit=by_order)
    ordered.Config.counts_values = True
    with pytest.raises(FeatureError, match="another `fit` on the same counts in another order"):
        check_encoder(ordered.Config(), TEXTS)
    apart = variant("Apart", unknown_rows=property(lambda self: range(1, 2)))
    with pytest.raises(FeatureError, match=r"did not occur; its id \d+ is not in `unknown_rows`, range\(1, 2\)"):
        check_encoder(apart.Config(), TEXTS)
    with pytest.raises(FeatureError, match="give two or more distinct values"):
        check_encoder(Salted.Config(), ["a", "a"])
    assert check_encoder(Salted.Config(), TEXTS) == Salted(20, 5)


def test_int32_ids_are_as_good_as_int64(tmp_path: Path, own_encoders: Any) -> None:
    own_encoders.Narrow = variant("Narrow", transform=lambda self, values: ids_of(self, values).astype(np.int32))
    (tmp_path / "narrow").mkdir()
    batches = [
        Dataset(folder).split("train").read(0)
        for folder in (prepared(tmp_path), prepared(tmp_path / "narrow", "Narrow"))
    ]
    assert batches[0].equals(batches[1])


def test_a_new_value_with_an_id_beyond_the_table_is_an_error_of_its_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transform = Transform.load(prepared(tmp_path) / ENCODERS)
    new = block(transform.raw_schema(labelled=False), colour=["red_1", "a new one"])
    assert transform.apply(new, labelled=False).batch.num_rows == 2
    monkeypatch.setattr(
        Salted, "transform", lambda self, values: np.array([3 if v in TEXTS else 21 for v in values.to_pylist()])
    )
    with pytest.raises(
        FeatureError, match=f"encoder {MODULE}:Salted: `transform` gives the value 'a new one' the id 21; allowed"
    ):
        transform.apply(new, labelled=False)


def test_code_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepared(tmp_path) / ENCODERS
    assert load_encoder(folder, "colour") == Salted(20, 5)
    monkeypatch.setattr(Salted.Config, "version", 2)
    with pytest.raises(
        DataError, match="table 'colour' was fitted by version 1 of own_encoders:Salted, which is now ver"
    ):
        load_encoder(folder, "colour")


def test_other_ids_of_the_same_version_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepared(tmp_path)
    monkeypatch.setattr(Salted, "transform", lambda self, values: self.rows - ids_of(self, values))
    expected = r"own_encoders:Salted: the value 'red_1' had the id \d+ when it was fitted, it has \d+ now, although the"
    with pytest.raises(DataError, match=expected) as caught:
        load_encoder(folder / ENCODERS, "colour")
    assert "raise `version` in its Config" in caught.value.hint
    with pytest.raises(DataError, match=expected):  # also where the dataset is there already
        prepared(tmp_path)


def test_a_state_without_version_and_ids_is_still_read(tmp_path: Path) -> None:
    write_json(tmp_path / "table.colour.json", {"import": f"{MODULE}:Salted", "buckets": 3, "salt": 1})
    assert load_encoder(tmp_path, "colour") == Salted(3, 1)


@pytest.mark.parametrize("ids", [7, {}, {"values": ["a"], "ids": []}, {"values": ["a", 1], "ids": [1, 2]}, [[], []]])
def test_damaged_ids_are_named(tmp_path: Path, ids: Any) -> None:
    state = {"import": f"{MODULE}:Salted", "import_version": 1, "import_ids": ids, "buckets": 3, "salt": 1}
    write_json(tmp_path / "table.colour.json", state)
    with pytest.raises(DataError, match=r"table\.colour\.json: import_ids holds"):
        load_encoder(tmp_path, "colour")


def test_equal_states_of_other_data_are_the_same_fit(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    saved = encoder_settings(prepared(tmp_path) / ENCODERS, "colour")
    assert (saved["import"], saved["import_version"]) == (f"{MODULE}:Salted", 1)
    assert len(saved["import_ids"]["values"]) == len(saved["import_ids"]["ids"]) > len(TEXTS)
    other = {**saved, "import_ids": {"values": ["x"], "ids": [1]}}
    older = {key: value for key, value in saved.items() if key not in {"import_version", "import_ids"}}
    assert same_fit(saved, other)
    assert same_fit(saved, older)
    assert same_fit(older, saved)
    assert not same_fit(saved, {**saved, "import_version": 2})
    assert not same_fit(saved, {**older, "salt": 6})


def test_a_class_that_was_renamed_is_named_with_what_to_do(tmp_path: Path, own_encoders: Any) -> None:
    folder = prepared(tmp_path) / ENCODERS
    del own_encoders.Salted
    own_encoders.Salty = Salted
    with pytest.raises(DataError, match=r"transform\.json: [\s\S]*own_encoders.* has no 'Salted'") as caught:
        SavedTransform.open(folder)
    assert "it was fitted with own_encoders:Salted: let each module have the class under that name" in caught.value.hint
    own_encoders.Salted = Salted
    assert SavedTransform.open(folder).encoder("colour") == Salted(20, 5)


def test_an_encoder_saves_arrays_too(tmp_path: Path, own_encoders: Any) -> None:
    def to_state(self: Salted) -> State:
        return {"buckets": self.buckets}, {"salt": np.arange(2 * self.salt)[::2]}

    def from_state(cls: Any, figures: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Salted:
        return cls(figures["buckets"], len(arrays["salt"]))

    own_encoders.Arrays = variant("Arrays", to_state=to_state, from_state=classmethod(from_state))
    folder = prepared(tmp_path, "Arrays", salt=4) / ENCODERS
    assert json.loads((folder / "table.colour.json").read_text())["buckets"] == 20
    loaded: Any = load_encoder(folder, "colour")
    assert (type(loaded), loaded.salt) == (own_encoders.Arrays, 4)
