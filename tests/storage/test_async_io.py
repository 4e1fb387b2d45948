"""Concurrent transfers of blocks between files and memory, with every method that this machine has."""

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

from tests.storage.storage_kit import METHODS, make_transfers
from ziggurat.storage.async_io import (
    DEVICES,
    MAX_REQUEST_BYTES,
    BlockDevice,
    IOJob,
    Threads,
    Throttled,
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


@pytest.mark.parametrize("method", METHODS)
def test_blocks_read_back_as_written(method: str, file: int) -> None:
    transfers, random = make_transfers(method), np.random.default_rng(0)
    expected = np.zeros((1000, BLOCK), np.uint8)
    for _ in range(30):
        at = np.sort(random.choice(1000, int(random.integers(0, 120)), replace=False))
        blocks = memory(len(at))
        blocks[:] = random.integers(0, 256, blocks.shape)
        expected[at] = blocks
        transfers.write([IOJob(file, at * BLOCK, blocks)])
        at = np.sort(random.choice(1000, int(random.integers(1, 300)), replace=False))
        blocks = memory(len(at))
        transfers.read([IOJob(file, at * BLOCK, blocks)])
        assert np.array_equal(blocks, expected[at])
    transfers.close()


def test_adjacent_blocks_share_a_request() -> None:
    blocks = memory(6)
    starts, lengths, addresses = file_ranges(offsets(3, 4, 5, 9, 11, 12), blocks)
    assert starts.tolist() == [3 * BLOCK, 9 * BLOCK, 11 * BLOCK]
    assert lengths.tolist() == [3 * BLOCK, BLOCK, 2 * BLOCK]
    assert (addresses - blocks.ctypes.data).tolist() == [0, 3 * BLOCK, 4 * BLOCK]
    assert [each.tolist() for each in file_ranges(offsets(), memory(0))] == [[], [], []]


def test_a_long_file_range_is_split() -> None:
    count = 2 * MAX_REQUEST_BYTES // BLOCK + 7
    blocks = memory(count + 1)
    starts, lengths, addresses = file_ranges(offsets(1, *range(10, 10 + count)), blocks)
    assert lengths.tolist() == [BLOCK, MAX_REQUEST_BYTES, MAX_REQUEST_BYTES, 7 * BLOCK]
    assert starts.tolist() == [BLOCK, 10 * BLOCK, 10 * BLOCK + MAX_REQUEST_BYTES, 10 * BLOCK + 2 * MAX_REQUEST_BYTES]
    assert (addresses - blocks.ctypes.data).tolist() == [
        0,
        BLOCK,
        BLOCK + MAX_REQUEST_BYTES,
        BLOCK + 2 * MAX_REQUEST_BYTES,
    ]


@pytest.mark.parametrize("method", METHODS)
def test_reading_past_the_end_of_the_file_is_an_error(method: str, file: int) -> None:
    transfers = make_transfers(method)
    with pytest.raises(TransferError, match="the file ends before the block") as caught:
        transfers.read([IOJob(file, offsets(3, 998, 999, 1000), memory(4))])
    assert caught.value.errno == errno.ENODATA
    assert caught.value.offset == 998 * BLOCK  # where the file range starts
    blocks = memory(1)
    blocks[:] = 7
    transfers.write([IOJob(file, offsets(3), blocks)])  # later transfers still work
    again = memory(1)
    transfers.read([IOJob(file, offsets(3), again)])
    assert np.array_equal(again, blocks)


@pytest.mark.parametrize("method", METHODS)
def test_an_error_of_the_system_is_raised(method: str, tmp_path: Path) -> None:
    transfers = make_transfers(method)
    (tmp_path / "read only").write_bytes(bytes(4 * BLOCK))
    descriptor = os.open(tmp_path / "read only", os.O_RDONLY)
    with pytest.raises(TransferError) as caught:
        transfers.write([IOJob(descriptor, offsets(1, 3), memory(2))])
    assert caught.value.errno == errno.EBADF
    os.close(descriptor)


@pytest.mark.parametrize("method", METHODS)
def test_more_requests_than_fit_into_the_queue(method: str, file: int) -> None:
    transfers, at = make_transfers(method), np.arange(0, 1000, 2)
    blocks = memory(len(at))
    blocks[:] = (at % 251)[:, None]
    transfers.write([IOJob(file, at * BLOCK, blocks)])
    found = memory(1000)
    transfers.read([IOJob(file, np.arange(1000) * BLOCK, found)])
    assert np.array_equal(found[at], blocks)
    assert not found[1::2].any()


def test_a_throttled_device_takes_its_minimum_time(file: int) -> None:
    device = BlockDevice(read_s=0.02, write_s=0.001, reads=1e9, writes=100, read_bandwidth=1e12, write_bandwidth=1e12)
    throttled = Throttled(Threads(2), device, depth=4)
    started = time.perf_counter()
    throttled.read([IOJob(file, offsets(*range(0, 20, 2)), memory(10))])  # three rounds of four
    read_s = time.perf_counter() - started
    assert read_s >= 0.06
    started = time.perf_counter()
    throttled.write([IOJob(file, offsets(*range(0, 20, 2)), memory(10))])
    assert time.perf_counter() - started >= 0.1
    assert throttled.name == "threads, slowed"
    throttled.close()


def test_devices_match_their_data_sheets() -> None:
    nand = Throttled(Threads(1), DEVICES["nand"])
    assert nand.seconds(637_000, 0, writing=False) == pytest.approx(1)
    assert nand.seconds(1, 0, writing=True) == pytest.approx(18e-6)
    assert nand.seconds(1, 3_200_000_000, writing=False) == pytest.approx(1)
    nand.close()


def test_the_best_method_is_chosen_and_the_choice_of_threads_explained() -> None:
    transfers, why = open_transfers()
    assert (transfers.name, bool(why)) in {("io_uring", False), ("threads", True)}
    transfers.close()
    transfers, why = open_transfers("threads")
    assert (transfers.name, why) == ("threads", "threads were requested")
    transfers.close()


PRINT_METHOD = """
import resource, sys
from ziggurat.storage.async_io import open_transfers
if sys.argv[1] == "open files":
    open_transfers()[0].close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
transfers, why = open_transfers()
print(transfers.name, "|", why)
"""


def test_a_damaged_library_is_compiled_again(tmp_path: Path) -> None:
    code = "from ziggurat.storage.native import library; print(library())"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    run = lambda: subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)  # noqa: E731
    if (first := run()).returncode:
        pytest.skip(first.stderr.strip().splitlines()[-1])
    (compiled,) = (tmp_path / "ziggurat" / "native").glob("*.so")
    content = compiled.read_bytes()
    compiled.write_bytes(content[:100])
    assert run().returncode == 0
    assert compiled.read_bytes()[:4] == b"\x7fELF"
    assert len(compiled.read_bytes()) > 100


@pytest.mark.parametrize(
    ("cause", "compiler", "message"),
    [
        ("compiler", "no-such-cc", "no-such-cc cannot be run"),
        ("compiler", "false", "false does not compile native.c"),
        ("open files", "", "the kernel provides no io_uring: Too many open files"),
    ],
)
def test_without_io_uring_threads_are_used_and_the_reason_is_given(
    cause: str, compiler: str, message: str, tmp_path: Path
) -> None:
    if cause == "open files":
        try:
            library()
        except NativeUnavailable as error:
            pytest.skip(str(error))
    cache = {} if cause == "open files" else {"XDG_CACHE_HOME": str(tmp_path), "CC": compiler}
    done = subprocess.run(
        [sys.executable, "-c", PRINT_METHOD, cause],
        env={**os.environ, **cache},
        capture_output=True,
        text=True,
        check=True,
    )
    name, _, why = done.stdout.strip().partition(" | ")
    assert name == "threads"
    assert message in why
