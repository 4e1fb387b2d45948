"""TensorBoard's files are opened with the first record, so that no first step waits for their import."""

from __future__ import annotations

from pathlib import Path

from tests.training.conftest import MakeExperiment
from ziggurat.training import api
from ziggurat.training.run_folder.metrics_log import MetricsLog
from ziggurat.training.run_folder.run_files import RunFiles


def test_the_board_is_written_with_the_first_record(make_experiment: MakeExperiment) -> None:
    folder = api.train(make_experiment(training__epochs=1), "run").run.folder
    board = folder / "tensorboard"
    assert list(board.iterdir())
    for file in board.iterdir():
        file.unlink()
    with MetricsLog(RunFiles.open(folder), 10**6) as log:
        assert not list(board.iterdir())
        log.write("train", 10**6, 1.0, {"loss": 0.5})
        assert [each.name.startswith("events.") for each in Path(board).iterdir()] == [True]
