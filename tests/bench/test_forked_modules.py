"""Modules started as forks behave as processes that Python starts."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.forked_modules import start_modules_by_forks
from tests.commands import PRELOADED

MODULE = """
import json, os, sys, time
if __name__ == "__main__":
    what = sys.argv[1]
    if what == "report":
        print(json.dumps({
            "arguments": sys.argv[1:], "folder": os.getcwd(), "variable": os.environ.get("COLOUR"), "pid": os.getpid(),
            "session": os.getsid(0) == os.getpid(), "input": sys.stdin.read(), "parent": os.getppid(),
            "cores": len(os.sched_getaffinity(0)),
        }))
        print("to stderr", file=sys.stderr)
    elif what == "fail":
        raise ValueError("broken")
    elif what == "text":
        sys.exit("a message")
    elif what == "status":
        sys.exit(7)
    else:
        print("waits", flush=True)
        time.sleep(600)
"""


def _in_a_fork(work: Callable[[Path], Any], folder: Path, answer: Any) -> None:
    os.chdir(folder)
    sys.modules["inherited"] = sys
    start_modules_by_forks()
    answer.send(work(folder))


def forked(work: Callable[[Path], Any], folder: Path) -> Any:
    """Returns the result of ``work`` in a process that starts modules as forks."""
    (folder / "started.py").write_text(MODULE)
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_in_a_fork, args=(work, folder, theirs))
    process.start()
    theirs.close()
    found = ours.recv() if ours.poll(120) else None
    process.join(60)
    assert process.exitcode == 0
    return found


def command(what: str) -> list[str]:
    return [sys.executable, "-m", "started", what]


def report(folder: Path) -> tuple[dict[str, Any], str, int, int]:
    (folder / "elsewhere").mkdir()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    environment = {"COLOUR": "red", "PYTHONPATH": str(folder)}
    process = subprocess.Popen(
        command("report"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=folder / "elsewhere", env=environment, start_new_session=True,
    )  # fmt: skip
    out, err = process.communicate("given", timeout=60)
    return json.loads(out), err, process.returncode, process.pid


def test_a_module_has_its_own_arguments_folder_environment_descriptors_and_session(tmp_path: Path) -> None:
    told, errors, status, pid = forked(report, tmp_path)
    del told["parent"]
    assert told == {
        "arguments": ["report"], "folder": str(tmp_path / "elsewhere"), "variable": "red", "pid": pid, "session": True,
        "input": "given", "cores": 1,
    }  # fmt: skip
    assert (errors, status) == ("to stderr\n", 0)


def failures(folder: Path) -> list[tuple[int, str]]:
    ended = [
        subprocess.run(command(what), capture_output=True, text=True, check=False)
        for what in ("fail", "text", "status")
    ]
    return [(each.returncode, each.stderr) for each in ended]


def test_failures_have_the_status_and_the_output_of_python(tmp_path: Path) -> None:
    (failed, trace), text, status = forked(failures, tmp_path)
    assert failed == 1
    assert trace.endswith("ValueError: broken\n")
    assert text == (1, "a message\n")
    assert status == (7, "")


def killed(folder: Path) -> tuple[Any, bool, int, int]:
    process = subprocess.Popen(command("wait"), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    before = process.poll()
    try:
        process.wait(0.1)
        late = False
    except subprocess.TimeoutExpired:
        late = True
    process.send_signal(signal.SIGTERM)
    return before, late, process.wait(60), process.poll() or 0


def test_a_signal_ends_it(tmp_path: Path) -> None:
    assert forked(killed, tmp_path) == (None, True, -signal.SIGTERM, -signal.SIGTERM)


def others(folder: Path) -> tuple[str, str, bool]:
    log = folder / "log"
    with log.open("w") as file:
        subprocess.run(command("status"), stdout=file, stderr=file, check=False)
        file.write("still open")
    code = [sys.executable, "-c", "print('as usual')"]
    said = subprocess.run(code, capture_output=True, text=True, check=True).stdout
    prepared = ["sh", "-c", f'echo $$ > {folder}/pid; exec "$@"', "sh", *command("report")]
    with subprocess.Popen(prepared, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        told, _ = process.communicate()
    same = {int((folder / "pid").read_text()), json.loads(told)["pid"], process.pid}
    return log.read_text(), said, len(same) == 1


def test_files_stay_open_other_commands_start_as_usual_and_a_script_may_prepare_the_process(tmp_path: Path) -> None:
    assert forked(others, tmp_path) == ("still open", "as usual\n", True)


def _has_inherited(_: int) -> bool:
    return "inherited" in sys.modules


def pooled(folder: Path) -> list[bool]:
    del folder
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        return pool.map(_has_inherited, [0])


def test_the_server_that_forks_processes_is_a_fork(tmp_path: Path) -> None:
    assert forked(pooled, tmp_path) == [True]
