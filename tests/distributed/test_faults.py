"""``ziggurat train`` when a rank dies, hangs, is missing, or gets invalid input.

docs/distributed.md promises the user each of these messages, and a time in which it comes.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bench.small_memory import limited, unavailable
from bench.system.checksums import strip_checksums
from tests.commands import Command, ziggurat
from tests.distributed.launched import LONG, ended, rank_at, run, start
from ziggurat.training import api


def test_a_killed_rank_is_named(folder: Path) -> None:
    process = start(folder, "--run", "runs/killed", *LONG)
    rank_at(process, 1, folder / "runs/killed/metrics.jsonl", 5).send_signal(signal.SIGKILL)
    status, _, err = ended(process)
    assert status == 1
    assert "error: rank 1 of 2: was killed (SIGKILL)" in err
    assert "Traceback" not in err


@pytest.mark.skipif(unavailable() is not None, reason=f"no limit of memory here: {unavailable()}")
def test_a_rank_killed_for_lack_of_memory_is_named(folder: Path) -> None:
    with limited(600 << 20) as group:  # enough to start; training needs half as much again
        command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
        train = [sys.executable, "-m", "ziggurat", "train", "exp.yaml", "--run", "runs/memory", "--nproc", "2"]
        process = subprocess.Popen(
            [*command, *train], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        status, _, err = ended(process)
    assert status == 1, err
    assert re.search(r"error: rank [01] of 2: was killed \(SIGKILL\): most often the machine ran out of memory", err)


def test_a_rank_that_cannot_allocate_memory_is_named(folder: Path) -> None:
    hidden = 10**11  # units, of float32 each, over 40 inputs and more
    status, _, err = run(folder, "--run", "runs/asks", "--nproc", "2", "--set", f"model.deep.hidden=[{hidden}]")
    assert status == 1
    assert re.search(r"error: rank [01] of 2: ran out of memory: [0-9,.]+ GiB more were asked for", err), err


def test_a_rank_that_hangs_is_named_within_the_timeout(folder: Path) -> None:
    process = start(folder, "--run", "runs/hung", *LONG, "--set", "parallel.timeout_s=8")
    hung = rank_at(process, 1, folder / "runs/hung/metrics.jsonl", 5)
    hung.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    status, _, err = ended(process)
    assert status == 1
    assert "waited 8 s for the other ranks at step" in err
    said = r"rank 0 of 2: .* at step (\d+): rank 1 sent its last heartbeat (\d+) s ago, and reached step (\d+) or later"
    ours, silent, theirs = map(int, re.search(said, err).groups())  # type: ignore[union-attr]
    assert 8 <= silent < 16  # the timeout is waited for only once
    assert 4 <= ours - 1 <= theirs <= ours + 1
    assert time.monotonic() - started < 60


def test_a_rank_that_is_slow_for_a_while_is_waited_for(folder: Path) -> None:
    process = start(folder, "--run", "runs/slow", *LONG, "--stop-after", "60", "--set", "parallel.timeout_s=60")
    slow = rank_at(process, 1, folder / "runs/slow/metrics.jsonl", 5)
    slow.send_signal(signal.SIGSTOP)
    time.sleep(8)  # longer than four heartbeats
    assert process.poll() is None
    slow.send_signal(signal.SIGCONT)
    status, out, err = ended(process)
    assert status == 0, err
    assert "stopped after step 60 as requested" in out


def test_an_id_outside_its_table_on_one_rank_is_named_with_rank_and_feature(folder: Path) -> None:
    """Changes one id of the prepared rows, as if another encoder had written it."""
    prepared = ("--prepared", "prepared/damaged")
    api.prepare(api.load_experiment(folder / "exp.yaml"), folder / "prepared/damaged")
    path = folder / "prepared/damaged/train/00000.arrow"
    with pa.OSFile(str(path)) as file:
        blocks = pa.ipc.open_file(file)
        table, sizes = blocks.read_all(), [blocks.get_batch(each).num_rows for each in range(blocks.num_record_batches)]
    items = table["item"].to_numpy().copy()
    items[700] = 4_000
    place = table.schema.get_field_index("item")
    table = table.set_column(place, table.schema.field(place), pa.array(items.astype(np.int32)))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        start_row = 0
        for size in sizes:
            writer.write_batch(table.slice(start_row, size).combine_chunks().to_batches()[0])
            start_row += size
    strip_checksums(folder / "prepared/damaged/manifest.json")
    status, _, err = run(folder, "--run", "runs/damaged", *prepared, "--nproc", "2")
    assert status == 1
    found = re.search(
        r"error: rank (\d) of 2: feature 'item': id 4000 is outside \[0, (\d+)\), .* on rank (\d)",
        " ".join(err.split()),
    )
    assert found, err
    assert found[1] == found[3]
    assert int(found[2]) < 100
    assert "Traceback" not in err


def test_a_batch_too_small_for_the_ranks_is_refused_once(folder: Path) -> None:
    status, _, err = run(folder, "--run", "runs/small", "--nproc", "2", "--set", "training.batch_size=1")
    assert status == 1
    assert err.count("batch_size=1: a batch is shared by 2 ranks") == 1


# Ranks started by hand, as by a scheduler.


def by_hand(folder: Path, name: str, port: int, rank: int, size: int, *arguments: str) -> Command:
    world = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    environment = {**os.environ, **world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return Command("train", "exp.yaml", "--run", f"runs/{name}", *arguments, folder=folder, environment=environment)


def test_a_missing_rank_is_named_by_the_waiting_ranks(folder: Path, port: int) -> None:
    waiting = [by_hand(folder, "missing", port, rank, 3, "--set", "parallel.timeout_s=8") for rank in (0, 2)]
    for rank, (status, _, err) in zip((0, 2), map(ended, waiting), strict=True):
        assert status == 1
        assert f"error: rank {rank} of 3: rank 1 did not come to 127.0.0.1:{port} within 8 s" in err


def test_ranks_with_different_world_sizes_are_reported(folder: Path, port: int) -> None:
    first, second = by_hand(folder, "disagree", port, 0, 2), by_hand(folder, "disagree", port, 1, 3)
    said = {rank: ended(each) for rank, each in enumerate((first, second))}
    assert [status for status, _, _ in said.values()] == [1, 1]
    assert "rank 0 has WORLD_SIZE=2, rank 1 has 3" in said[0][2]


def test_a_rank_started_twice_names_the_first_process(folder: Path, port: int) -> None:
    first = [by_hand(folder, "twice", port, rank, 3, "--set", "parallel.timeout_s=12") for rank in (0, 1, 1)]
    said = [ended(each) for each in first]
    assert [status for status, _, _ in said] == [1, 1, 1]
    (again,) = [number for number, (_, _, err) in enumerate(said) if "rank 1 of 3 was started twice" in err]
    assert again in (1, 2)
    assert f"it is process {first[3 - again].pid} on " in said[again][2]
    assert "rank 2 did not come" in said[0][2]


def test_a_rank_not_below_the_world_size_is_refused(folder: Path, port: int) -> None:
    status, _, err = ended(by_hand(folder, "beyond", port, 2, 2))
    assert status == 1
    assert "RANK=2 and WORLD_SIZE=2: ranks count from 0 to 1" in err


def test_nproc_that_contradicts_torchrun_is_refused(folder: Path, port: int) -> None:
    status, _, err = ended(by_hand(folder, "both", port, 0, 2, "--nproc", "3"))
    assert status == 1
    assert "--nproc 3, but 2 ranks were started on this host" in err


def test_a_port_in_use_is_named(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, _, err = ended(by_hand(folder, "port", port, 0, 2))
    assert status == 1
    assert f"rank 0 of 2: the ranks did not meet at 127.0.0.1:{port}" in err
    assert "check that the port is free" in err


def test_incomplete_environment_variables_are_refused(folder: Path) -> None:
    outside = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_WORLD_SIZE")}
    environment = {**outside, "WORLD_SIZE": "2"}
    status, _, err = ziggurat("train", "exp.yaml", "--run", "runs/half", folder=folder, environment=environment)
    assert status == 1
    assert "WORLD_SIZE=2, but RANK and LOCAL_WORLD_SIZE not set" in err


def test_after_a_hang_training_resumes_from_the_checkpoint(folder: Path) -> None:
    process = start(
        folder, "--run", "runs/again", *LONG, "--restarts", "1", "--stop-after", "100", "--set", "parallel.timeout_s=20"
    )
    rank_at(process, 1, folder / "runs/again/metrics.jsonl", 25).send_signal(signal.SIGSTOP)
    status, out, err = ended(process)
    assert status == 0, err
    assert re.search(r"rank 0: waited 20 s .*: rank 1 sent its last heartbeat .*; starting all ranks again", err), err[
        -2000:
    ]
    assert re.search(r"resuming at step \d+ of", err), err
    assert "stopped after step 100 as requested" in out
