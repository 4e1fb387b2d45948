"""A worker is seen from its start to its end, whoever looks meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from ziggurat.serving.versions.workers_seen import WorkerMark, workers_seen


def test_a_worker_is_seen_also_if_others_look_while_it_starts(tmp_path: Path) -> None:
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            workers_seen(tmp_path)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for each in threads:
        each.start()
    try:
        for number in range(3_000):
            mark = WorkerMark(tmp_path)
            mark.set(number)
            seen = workers_seen(tmp_path)
            mark.close()
            assert seen == {os.getpid(): number}
    finally:
        stop.set()
        for each in threads:
            each.join()
    assert workers_seen(tmp_path) == {}


def test_the_mark_of_a_worker_that_was_killed_is_removed(tmp_path: Path) -> None:
    die = (
        "import os, pathlib, sys; from ziggurat.serving.versions.workers_seen import WorkerMark; "
        "WorkerMark(pathlib.Path(sys.argv[1])).set(7); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", die, str(tmp_path)], check=False)
    assert ended.returncode == -9
    assert len(list((tmp_path / "workers").iterdir())) == 1
    assert workers_seen(tmp_path) == {}
    assert list((tmp_path / "workers").iterdir()) == []
