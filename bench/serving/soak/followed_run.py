"""A run with many checkpoints, which are put one by one where a server follows them, and what each of them predicts."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.serving.open_loop import Request
from bench.serving.peer_model import PeerModel, write_export
from bench.serving.soak.checked_load import Answer
from ziggurat.checkpoint.reader import folder_of
from ziggurat.training.prediction.predictor import Predictor
from ziggurat.training.process_group import process_group
from ziggurat.training.recommender import Recommender
from ziggurat.training.recommender_state import restore_from
from ziggurat.training.run_folder.run import open_run

ROWS_OF_A_REQUEST = 8
"""A batch is one request, as other rows in a batch may change the last bits of a prediction."""
SAVE_EVERY = 2
_LABELS = ("click", "buy")


@dataclass(slots=True)
class FollowedRun:
    """The run and what is followed.

    Attributes:
        model: the export of the first checkpoint.
        run: the folder of the run.
        steps: its checkpoints, the first of which is exported.
        place: where checkpoints are followed.
        put_at: step -> when its checkpoint was put there, on the clock of :func:`time.monotonic`.
        requests: the rows of each request.
    """

    model: PeerModel
    run: Path
    steps: list[int]
    place: Path
    requests: list[list[dict[str, Any]]]
    put_at: dict[int, float] = field(default_factory=dict[int, float])
    _expected: dict[int, list[list[list[float]]]] = field(default_factory=dict[int, list[list[list[float]]]])
    _predictor: Predictor | None = None

    @classmethod
    def trained(cls, folder: Path, rows: int, checkpoints: int, requests: int) -> FollowedRun:
        """Trains the run, and puts the first checkpoint."""
        steps = [SAVE_EVERY * number for number in range(1, checkpoints + 1)]
        model = write_export(
            folder, rows, steps[-1], str(steps[0]), save_every=SAVE_EVERY, keep=checkpoints + 5, batch_size=64
        )
        if not (folder / "run" / "checkpoints" / folder_of(steps[-1])).exists():
            raise ValueError(f"{rows:,} rows end before step {steps[-1]}; give more")
        size = ROWS_OF_A_REQUEST
        parts = [model.rows[size * number : size * (number + 1)] for number in range(requests)]
        found = cls(model, folder / "run", steps, folder / "followed", parts)
        found.put(steps[0])
        return found

    def bodies(self) -> list[Request]:
        """Returns the requests."""
        return [Request("/v1/predict", json.dumps({"rows": rows}).encode()) for rows in self.requests]

    def put(self, step: int) -> None:
        """Puts a checkpoint where it is followed; it appears complete."""
        put_checkpoint(self.run, step, self.place)
        self.put_at[step] = time.monotonic()

    def put_next(self) -> None:
        """Puts the next checkpoint, if there is one."""
        left = [step for step in self.steps if step not in self.put_at]
        if left:
            self.put(left[0])

    def wrong(self, answers: list[Answer]) -> int:
        """Returns how many predictions are not to the bit those of the checkpoint that their version names."""
        wrong = 0
        for each in answers:
            if each.status != 200:
                continue
            answer = json.loads(each.body)
            found = [np.float32(answer["predictions"][label]).tolist() for label in _LABELS]
            if found != self.expected(answer["model"]["step"])[each.request]:
                wrong += each.count
        return wrong

    def expected(self, step: int) -> list[list[list[float]]]:
        """Returns the predictions of a checkpoint, request by request, with one thread as in a worker."""
        if step not in self._expected:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                if self._predictor is None:
                    self._predictor = Predictor(self.run)
                recommender = self._predictor.recommender
                assert isinstance(recommender, Recommender)
                with process_group(torch.device("cpu")):
                    restore_from(recommender, open_run(self.run).checkpoints, step)
                self._expected[step] = [self._predictor.predict(rows).T.tolist() for rows in self.requests]
            finally:
                torch.set_num_threads(threads)
        return self._expected[step]

    def close(self) -> None:
        """Closes the predictor."""
        if self._predictor is not None:
            self._predictor.close()

    def freshness(self, answers: list[Answer]) -> dict[int, float]:
        """Returns step -> seconds from its checkpoint's appearance to the first answer with it."""
        first: dict[int, float] = {}
        for each in answers:
            if each.status == 200:
                step = json.loads(each.body)["model"]["step"]
                first[step] = min(each.first, first.get(step, each.first))
        return {step: at - self.put_at[step] for step, at in first.items() if step in self.put_at}


def put_checkpoint(run: Path, step: int, place: Path) -> None:
    """Copies a checkpoint of a run into a folder, where it appears complete."""
    place.mkdir(exist_ok=True)
    name = folder_of(step)
    shutil.copytree(run / "checkpoints" / name, place / f".{name}")
    (place / f".{name}").rename(place / name)
