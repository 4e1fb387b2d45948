"""Blocks between files and memory, side by side, in every way that this machine has."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.storage.storage_kit import WAYS, transfers
from ziggurat.storage.async_io import (
    DEVICES,
    LONGEST,
    BlockDevice,
    IOJob,
    Slowed,
    Threads,
    TransferError,
    file_ranges,
    open_transfers,
)
from ziggurat.storage.native import NativeUnavailable, library

BLOCK = 512


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "blocks", os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, 1000 * BLOCK)
    yield descriptor
    os.close(descriptor)


def memory(count: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(-1, max(1, count) * BLOCK), np.uint8)[: count * BLOCK].reshape(count, BLOCK)


def offsets(*blocks: int) -> npt.NDArray[np.int64]:
    return np.array(blocks, np.int64) * BLOCK


@pytest.mark.parametrize("way", WAYS)
def test_blocks_come_back_as_they_went(way: str, file: int) -> None:
    moved, draw = transfers(way), np.random.default_rng(0)
    kept = np.zeros((1000, BLOCK), np.uint8)
    for _ in range(30):
        at = np.sort(draw.choice(1000, int(draw.integers(0, 120)), replace=False))
        blocks = memory(len(at))
        blocks[:] = draw.integers(0, 256, blocks.shape)
        kept[at] = blocks
        moved.write([IOJob(file, at * BLOCK, blocks)])
        at = np.sort(draw.choice(1000, int(draw.integers(1, 300)), replace=False))
        blocks = memory(len(at))
        moved.read([IOJob(file, at * BLOCK, blocks)])
        assert np.array_equal(blocks, kept[at])
    moved.close()


def test_neighbours_are_one_request() -> None:
    blocks = memory(6)
    begins, lengths, addresses = file_ranges(offsets(3, 4, 5, 9, 11, 12), blocks)
    assert begins.tolist() == [3 * BLOCK, 9 * BLOCK, 11 * BLOCK]
    assert lengths.tolist() == [3 * BLOCK, BLOCK, 2 * BLOCK]
    assert (addresses - blocks.ctypes.data).tolist() == [0, 3 * BLOCK, 4 * BLOCK]
    assert [each.tolist() for each in file_ranges(offsets(), memory(0))] == [[], [], []]


def test_a_long_stretch_is_cut() -> None:
    count = 2 * LONGEST // BLOCK + 7
    blocks = memory(count + 1)
    begins, lengths, addresses = file_ranges(offsets(1, *range(10, 10 + count)), blocks)
    assert lengths.tolist() == [BLOCK, LONGEST, LONGEST, 7 * BLOCK]
    assert begins.tolist() == [BLOCK, 10 * BLOCK, 10 * BLOCK + LONGEST, 10 * BLOCK + 2 * LONGEST]
    assert (addresses - blocks.ctypes.data).tolist() == [0, BLOCK, BLOCK + LONGEST, BLOCK + 2 * LONGEST]


@pytest.mark.parametrize("way", WAYS)
def test_what_lies_behind_the_end_is_told(way: str, file: int) -> None:
    moved = transfers(way)
    with pytest.raises(TransferError, match="the file ends before it") as caught:
        moved.read([IOJob(file, offsets(3, 998, 999, 1000), memory(4))])
    assert caught.value.errno == errno.ENODATA
    assert caught.value.offset == 998 * BLOCK  # of the stretch
    blocks = memory(1)
    blocks[:] = 7
    moved.write([IOJob(file, offsets(3), blocks)])  # it goes on
    again = memory(1)
    moved.read([IOJob(file, offsets(3), again)])
    assert np.array_equal(again, blocks)


@pytest.mark.parametrize("way", WAYS)
def test_what_the_system_refuses_is_told(way: str, tmp_path: Path) -> None:
    moved = transfers(way)
    (tmp_path / "read only").write_bytes(bytes(4 * BLOCK))
    descriptor = os.open(tmp_path / "read only", os.O_RDONLY)
    with pytest.raises(TransferError) as caught:
        moved.write([IOJob(descriptor, offsets(1, 3), memory(2))])
    assert caught.value.errno == errno.EBADF
    os.close(descriptor)


@pytest.mark.parametrize("way", WAYS)
def test_more_requests_than_go_side_by_side(way: str, file: int) -> None:
    moved, at = transfers(way), np.arange(0, 1000, 2)
    blocks = memory(len(at))
    blocks[:] = (at % 251)[:, None]
    moved.write([IOJob(file, at * BLOCK, blocks)])
    found = memory(1000)
    moved.read([IOJob(file, np.arange(1000) * BLOCK, found)])
    assert np.array_equal(found[at], blocks)
    assert not found[1::2].any()


def test_a_slower_device_takes_its_time(file: int) -> None:
    device = BlockDevice(read_s=0.02, write_s=0.001, reads=1e9, writes=100, read_bandwidth=1e12, write_bandwidth=1e12)
    slowed = Slowed(Threads(2), device, depth=4)
    started = time.perf_counter()
    slowed.read([IOJob(file, offsets(*range(0, 20, 2)), memory(10))])  # three rounds of four
    read_s = time.perf_counter() - started
    assert read_s >= 0.06
    started = time.perf_counter()
    slowed.write([IOJob(file, offsets(*range(0, 20, 2)), memory(10))])
    assert time.perf_counter() - started >= 0.1
    assert slowed.name == "threads, slowed"
    slowed.close()


def test_devices_are_as_their_data_sheets_say() -> None:
    nand = Slowed(Threads(1), DEVICES["nand"])
    assert nand.seconds(637_000, 0, writing=False) == pytest.approx(1)
    assert nand.seconds(1, 0, writing=True) == pytest.approx(18e-6)
    assert nand.seconds(1, 3_200_000_000, writing=False) == pytest.approx(1)
    nand.close()


def test_the_best_way_is_taken_and_another_one_explained() -> None:
    moved, why = open_transfers()
    assert (moved.name, bool(why)) in {("io_uring", False), ("threads", True)}
    moved.close()
    moved, why = open_transfers("threads")
    assert (moved.name, why) == ("threads", "threads were asked for")
    moved.close()


ASK = """
import resource, sys
from ziggurat.storage.async_io import open_transfers
if sys.argv[1] == "files":
    open_transfers()[0].close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
moved, why = open_transfers()
print(moved.name, "|", why)
"""


def test_a_damaged_compiled_part_is_made_anew(tmp_path: Path) -> None:
    ask = "from ziggurat.storage.native import library; print(library())"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    run = lambda: subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True)  # noqa: E731
    if (first := run()).returncode:
        pytest.skip(first.stderr.strip().splitlines()[-1])
    (made,) = (tmp_path / "ziggurat" / "native").glob("*.so")
    content = made.read_bytes()
    made.write_bytes(content[:100])
    assert run().returncode == 0
    assert made.read_bytes()[:4] == b"\x7fELF"
    assert len(made.read_bytes()) > 100


@pytest.mark.parametrize(
    ("how", "compiler", "said"),
    [
        ("compiler", "no-such-cc", "no-such-cc cannot be run"),
        ("compiler", "false", "false does not compile native.c"),
        ("files", "", "the kernel gives no io_uring: Too many open files"),
    ],
)
def test_a_machine_without_io_uring_takes_threads_and_says_why(
    how: str, compiler: str, said: str, tmp_path: Path
) -> None:
    if how == "files":
        try:
            library()
        except NativeUnavailable as error:
            pytest.skip(str(error))
    cache = {} if how == "files" else {"XDG_CACHE_HOME": str(tmp_path), "CC": compiler}
    done = subprocess.run(
        [sys.executable, "-c", ASK, how], env={**os.environ, **cache}, capture_output=True, text=True, check=True
    )
    name, _, why = done.stdout.strip().partition(" | ")
    assert name == "threads"
    assert said in why
