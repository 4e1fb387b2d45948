"""Several users of one process: predictors that threads open, share, swap and close, a training, a fork, a kill."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.optim import apply_optimizer_in_backward as in_backward

from tests.training.conftest import config_values, write_log
from tests.training.test_train import assert_same_bits, tensors
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.errors import AlreadyTraining, EnvironmentMismatch, PredictorClosed, RunFolderError
from ziggurat.core.progress import Silent
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.prediction import predictor as predictor_module
from ziggurat.training.prediction.users import Users
from ziggurat.training.process_group import process_group

ROWS = 600
CPU = torch.device("cpu")
REQUEST: dict[str, list[Any]] = {
    "user": ["u1", "u2", None, "new"],
    "item": [3, 4, 99999, None],
    "age": [20.0, None, 3.5, 99.0],
    "tags": [[1, 2], [], [0], [7]],
    "history": [[5], [1, 2, 3, 4], [], [2]],
}


def experiment(folder: Path, **changes: Any) -> Experiment:
    values = config_values(folder)
    settings = {"training__epochs": 1, "training__batch_size": 64, "model__deep__dropout": 0.2, **changes}
    for path, value in settings.items():
        set_by_path(values, path.replace("__", "."), value)
    return parse_config(Experiment, values)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log and two runs of different seeds, ``first`` and ``second``."""
    folder = tmp_path_factory.mktemp("one_process")
    write_log(folder / "log.csv", ROWS)
    for name, seed in (("first", 1), ("second", 2)):
        api.train(experiment(folder, training__seed=seed), folder / name, prepared=folder / "prepared")
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Run -> the answer to :data:`REQUEST` when nothing else uses the process."""
    return {name: api.predict(folder / name, REQUEST) for name in ("first", "second")}


@pytest.fixture(autouse=True)
def _no_group_remains() -> Iterator[None]:
    yield
    assert not dist.is_initialized()


class During(Silent):
    """A progress that does some work in another thread at the first steps of a training, which waits for it."""

    def __init__(self, *work: Callable[[], object]) -> None:
        self._work = list(work)
        self.results: list[object] = []

    def advance(self, done: float, **figures: float | str) -> None:
        if figures and self._work:
            with ThreadPoolExecutor(1) as pool:
                self.results.append(pool.submit(self._work.pop(0)).result())


def test_closing_the_first_predictor_does_not_break_the_second(folder: Path, expected: dict[str, Any]) -> None:
    first = api.Predictor(folder / "first")
    second = api.Predictor(folder / "second")
    first.close()
    np.testing.assert_array_equal(second.predict(REQUEST), expected["second"])
    third = api.Predictor(folder / "first")
    second.close()
    np.testing.assert_array_equal(third.predict(REQUEST), expected["first"])
    third.close()
    third.close()


def test_threads_open_share_and_close_predictors_in_any_order(folder: Path, expected: dict[str, Any]) -> None:
    with api.Predictor(folder / "first") as shared:

        def use(number: int) -> None:
            name = ("first", "second")[number % 2]
            with api.Predictor(folder / name) as own:
                np.testing.assert_array_equal(shared.predict(REQUEST), expected["first"])
                np.testing.assert_array_equal(own.predict(REQUEST), expected[name])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(use, range(8)))


def test_an_open_predictor_leaves_the_default_process_group_to_others(folder: Path, expected: dict[str, Any]) -> None:
    with api.Predictor(folder / "first") as predictor:
        assert not dist.is_initialized()
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        with api.Predictor(folder / "second") as second:
            assert dist.is_initialized()
            dist.destroy_process_group()
            np.testing.assert_array_equal(second.predict(REQUEST), expected["second"])
        np.testing.assert_array_equal(predictor.predict(REQUEST), expected["first"])


def test_the_process_group_goes_with_its_last_user() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with process_group(CPU):
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with process_group(CPU) as world:
        group = dist.group.WORLD
        thread.start()
        entered.wait()
        with process_group(CPU):
            assert dist.group.WORLD is group
    assert world.size == 1
    assert dist.group.WORLD is group, "the other thread still uses it"
    leave.set()
    thread.join()
    assert not dist.is_initialized()


def test_a_group_of_somebody_else_is_used_and_stays() -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    group = dist.group.WORLD
    with process_group(CPU), pytest.raises(KeyError), process_group(CPU):
        raise KeyError
    assert dist.group.WORLD is group
    dist.destroy_process_group()


def test_a_closed_predictor_says_so(folder: Path) -> None:
    with api.Predictor(folder / "first") as predictor:
        pass
    with pytest.raises(PredictorClosed, match=r"first: this predictor is closed[\s\S]*open a new one"):
        predictor.predict(REQUEST)
    with pytest.raises(PredictorClosed):
        _ = predictor.recommender
    assert predictor.closed


def test_a_closed_predictor_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor_module, "LARGE_BYTES", 0)
    hook, kept = sys.excepthook, len(in_backward.param_to_acc_grad_map)
    with api.Predictor(folder / "first") as predictor:
        predictor.predict(REQUEST)
        tables = [weakref.ref(tensor) for tensor in predictor.recommender.lookup.buffers()]
        tables += [weakref.ref(module) for module in predictor.recommender.lookup.modules()]
    assert len(tables) > 4
    assert [table() for table in tables] == [None] * len(tables)
    assert sys.excepthook is hook, "torch wraps it at each process group"
    assert len(in_backward.param_to_acc_grad_map) == kept, "torch keeps the weights of optimizers in backward"


def test_the_end_waits_for_those_that_use_it_and_refuses_others() -> None:
    users, entered, leave = Users("it"), threading.Event(), threading.Event()
    released: list[bool] = []

    def use() -> None:
        with users.entered():
            entered.set()
            leave.wait()

    threads = [threading.Thread(target=use)]
    threads[0].start()
    entered.wait()
    for _ in range(2):
        threads.append(threading.Thread(target=lambda: released.append(users.end())))
        threads[-1].start()
    while not users.ended:
        pass
    with pytest.raises(PredictorClosed), users.entered():
        pass
    assert released == [], "a user is still inside"
    leave.set()
    for thread in threads:
        thread.join()
    assert sorted(released) == [False, True], "one of the callers is to release it"


def test_a_swap_that_fails_keeps_the_model(folder: Path, expected: dict[str, Any]) -> None:
    with api.SwappablePredictor(folder / "first") as predictor:
        with pytest.raises(RunFolderError, match="no run folder"):
            predictor.swap(folder / "third")
        np.testing.assert_array_equal(predictor.predict(REQUEST), expected["first"])
        before = predictor.current
        predictor.swap(folder / "second")
        assert before.closed
        np.testing.assert_array_equal(predictor.predict(REQUEST), expected["second"])
    with pytest.raises(PredictorClosed):
        predictor.predict(REQUEST)
    with pytest.raises(PredictorClosed):
        predictor.swap(folder / "first")


def _random_state() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]


def test_random_numbers_of_the_caller_are_not_disturbed(folder: Path, tmp_path: Path) -> None:
    before = _random_state()
    api.train(experiment(folder), tmp_path / "run", prepared=folder / "prepared", stop_after=2)
    assert _random_state() == before
    api.evaluate(folder / "first", "validation")
    with api.Predictor(folder / "first") as predictor:
        predictor.predict(REQUEST)
    assert _random_state() == before


def test_other_work_beside_a_training_does_not_change_it(
    folder: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    config = experiment(folder, training__log_every=1)
    prepared = folder / "prepared"
    alone = api.train(config, tmp_path / "alone", prepared=prepared)

    def refused() -> AlreadyTraining:
        with pytest.raises(
            AlreadyTraining, match=r"other: another training is running in this process \(.*beside\)"
        ) as e:
            api.train(experiment(folder, training__seed=9), tmp_path / "other", prepared=prepared)
        return e.value

    during = During(
        lambda: api.predict(folder / "first", REQUEST),
        refused,
        lambda: api.evaluate(folder / "second", "validation").compute()["log_loss"],
        refused,
    )
    beside = api.train(config, tmp_path / "beside", prepared=prepared, progress=during)
    assert_same_bits(tensors(tmp_path / "alone", alone.step), tensors(tmp_path / "beside", beside.step))
    assert alone.results is not None
    assert beside.results is not None
    assert alone.results["figures"] == beside.results["figures"]
    np.testing.assert_array_equal(during.results[0], expected["first"])
    assert len(during.results) == 4
    assert not (tmp_path / "other").exists()


def test_weights_that_are_not_finite_are_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ziggurat.training.loop import Trainer

    after_step = Trainer._after_step  # pyright: ignore[reportPrivateUsage]

    def train(name: str, spoil: Callable[[Trainer], None]) -> Path:
        def spoiled(trainer: Trainer, log: Any) -> None:
            with torch.no_grad():
                spoil(trainer)
            after_step(trainer, log)

        monkeypatch.setattr(Trainer, "_after_step", spoiled)
        api.train(experiment(folder), tmp_path / name, prepared=folder / "prepared", stop_after=1)
        return tmp_path / name

    def dense(trainer: Trainer) -> None:
        next(iter(trainer.recommender.dense_parameters().values())).view(-1)[:2] = float("nan")

    def row(trainer: Trainer) -> None:
        trainer.recommender.lookup.weights()["item"][2, 3] = float("inf")

    run = train("dense", dense)
    steps = CheckpointFolder(run / "checkpoints").steps()
    problem = rf"dense: checkpoint of step {steps[-1]}: 2 of [\d,]+ values of the parameter 'model\.\S+' are not finite"
    for use in (lambda: api.Predictor(run, "last"), lambda: api.evaluate(run, "test", "last")):
        with pytest.raises(RunFolderError, match=problem):
            use()
    run = train("row", row)
    with api.Predictor(run, "last") as predictor:
        encoder = predictor.transform.encoders["item"]
        value = encoder.keys[0].as_py()  # type: ignore[attr-defined] - row 2, after those of missing and unknown values
        fine = {**REQUEST, "item": [None] * 4, "history": [[]] * 4}
        assert np.isfinite(predictor.predict(fine)).all()
        for feature, cells in (("item", [None, None, value, None]), ("history", [[], [], [value], []])):
            with pytest.raises(
                RunFolderError,
                match=rf"line 3: cannot be predicted: feature '{feature}' looks up row 2 of table 'item', not finite",
            ):
                predictor.predict({**fine, feature: cells})


def test_a_thread_that_cannot_start_is_one_error(folder: Path, tmp_path: Path) -> None:
    before = threading.stack_size(2**46)  # the system cannot give a stack of this size
    try:
        with pytest.raises(EnvironmentMismatch, match=r"started no further thread[\s\S]*ulimit -u"):
            api.train(experiment(folder), tmp_path / "run", prepared=folder / "prepared")
    finally:
        threading.stack_size(before)


def test_ranks_do_not_predict(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(EnvironmentMismatch, match="prediction runs in one process, but a launcher started 2 ranks"):
        api.Predictor(folder / "first")


FORK = """
import os, sys
import ziggurat
from tests.training.test_one_process import REQUEST, experiment
folder = sys.argv[1]
predictor = ziggurat.Predictor(folder + "/first")
predictor.predict(REQUEST)
child = os.fork()
if child == 0:
    attempts = {
        "predict": lambda: predictor.predict(REQUEST),
        "open": lambda: ziggurat.Predictor(folder + "/first"),
        "evaluate": lambda: ziggurat.evaluate(folder + "/first"),
        "train": lambda: ziggurat.train(experiment(__import__("pathlib").Path(folder)), folder + "/forked"),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except ziggurat.ForkedProcess as error:
            print(name, "spawn" in str(error), flush=True)
    predictor.close()
    os._exit(0)
os.waitpid(child, 0)
print("parent", predictor.predict(REQUEST).shape, flush=True)
"""


def test_a_fork_is_told_to_spawn(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.splitlines() == [
        "predict True", "open True", "evaluate True", "train True", "parent (4, 1)"
    ], done.stderr  # fmt: skip


KILLED = """
import sys, threading, time
from pathlib import Path
from ziggurat.core.progress import Silent
from ziggurat.training import api
from tests.training.test_one_process import experiment
folder, out = Path(sys.argv[1]), Path(sys.argv[2])
arrived = threading.Barrier(3)

class Stop(Silent):
    def advance(self, done, **figures):
        arrived.wait()
        time.sleep(600)

works = (
    lambda: api.train(experiment(folder), out / "run", prepared=folder / "prepared", progress=Stop()),
    lambda: api.predict_files(folder / "first", [str(folder / "log.csv")], out / "scored.parquet", progress=Stop()),
)
for work in works:
    threading.Thread(target=work, daemon=True).start()
arrived.wait()
print("stopped", flush=True)
time.sleep(600)
"""


def test_a_kill_leaves_no_temporary_files(folder: Path, tmp_path: Path) -> None:
    temporary, out = tmp_path / "tmp", tmp_path / "out"
    temporary.mkdir()
    out.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder), str(out)],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "stopped\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert list(temporary.iterdir()) == []
    assert [path.name for path in out.iterdir()] == ["run"]
