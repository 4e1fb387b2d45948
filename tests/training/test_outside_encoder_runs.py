"""A run whose encoder is from outside the package is used with the code that fitted it, or refused by name."""

from __future__ import annotations

import sys
import types
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from tests.training.conftest import MakeExperiment
from ziggurat.core.errors import DataError
from ziggurat.extension import Encoder, EncoderSettings, Ids, State, ValueCounts
from ziggurat.training.api import evaluate, predict_files, train
from ziggurat.training.experiment import Experiment

MODULE = "encoders_of_runs"


@dataclass(frozen=True)
class Hashed(Encoder):
    buckets: int

    class Config(EncoderSettings):
        version: ClassVar[int] = 1
        counts_values: ClassVar[bool] = False
        buckets: int = 30

        def fit(self, counts: ValueCounts | None) -> Encoder:
            return Hashed(self.buckets)

        @classmethod
        def encoder_class(cls) -> type[Encoder]:
            return Hashed

    @property
    def rows(self) -> int:
        return self.buckets

    @property
    def unknown_rows(self) -> range:
        return range(0)

    def transform(self, values: pa.Array) -> Ids:
        return np.array([zlib.crc32(value.encode()) % self.rows for value in values.to_pylist()], np.int64)

    def to_state(self) -> State:
        return {"buckets": self.rows}, {}

    @classmethod
    def from_state(cls, figures: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Self:
        return cls(figures["buckets"])


@pytest.fixture
def module() -> Iterator[Any]:
    found: Any = types.ModuleType(MODULE)
    found.Hashed = Hashed
    sys.modules[MODULE] = found
    yield found
    del sys.modules[MODULE]


def test_a_run_refuses_code_that_gives_other_ids(
    make_experiment: MakeExperiment, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def experiment(steps: int = 2) -> Experiment:
        return make_experiment(
            features__user__encoder={"import": f"{MODULE}:Hashed"}, model={"name": "fm"}, training__max_steps=steps
        )

    trained = experiment()
    run = train(trained, "run").run
    log = trained.data.folder / "log.csv"
    config = (run.folder / "config.yaml").read_text()
    uses: dict[str, Callable[[], Any]] = {
        "evaluate": lambda: evaluate("run"),
        "predict": lambda: predict_files("run", [str(log)], Path("scored.csv")),
        "resume": lambda: train(experiment(3), "run"),
    }

    def refused(problem: str, hint: str) -> None:
        for name, use in uses.items():
            with pytest.raises(DataError, match=problem) as caught:
                use()
            assert hint in caught.value.hint, name
        assert (run.folder / "config.yaml").read_text() == config

    with monkeypatch.context() as patch:
        patch.setattr(Hashed.Config, "version", 2)
        refused(
            "table 'user' was fitted by version 1 of encoders_of_runs:Hashed, which is now version 2",
            "restore the code of version 1, or prepare and train again",
        )
    with monkeypatch.context() as patch:
        patch.setattr(
            Hashed,
            "transform",
            lambda self, values: np.array([zlib.adler32(v.encode()) % self.rows for v in values.to_pylist()]),
        )
        refused(r"the value '\w+' had the id \d+ when it was fitted, it has \d+ now", "raise `version` in its Config")
    for use in uses.values():
        use()


def test_a_run_whose_config_names_a_new_class_says_that_the_old_one_is_needed(
    make_experiment: MakeExperiment, module: Any
) -> None:
    settings = {"model": {"name": "fm"}, "training__max_steps": 1}
    train(make_experiment(features__user__encoder={"import": f"{MODULE}:Hashed"}, **settings), "run")
    module.Renamed = Hashed
    del module.Hashed
    renamed = make_experiment(features__user__encoder={"import": f"{MODULE}:Renamed"}, **settings)
    with pytest.raises(DataError, match=r"transform\.json: [\s\S]*has no 'Hashed'") as caught:
        train(renamed, "run")
    assert "(`OldName = NewName` keeps one)" in caught.value.hint
