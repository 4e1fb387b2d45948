"""The harness of ``checkpoint_stall``: trains a model while checkpoints are written, ours and those of torch's DCP."""

from __future__ import annotations

import ctypes
import shutil
import statistics as st
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from bench.measure import interleave, ratios, seconds
from bench.micro.big_tables import BigTables, Size
from ziggurat.checkpoint.config import CheckpointsConfig, Policy
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format.manifest import Bits
from ziggurat.checkpoint.saver import Saver
from ziggurat.core.engine import library_versions
from ziggurat.training.malloc_tuning import keep_freed_memory

WARM = 5
"""Steps taken before a checkpoint, after freed memory was returned to the kernel."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured.

    Attributes:
        size: the size of the model.
        interval_s: seconds between two checkpoints.
        intervals: the number of intervals measured for each width of stored numbers.
        rounds, steps: rounds, and steps per round, when the cost of tracking dirty rows is measured.
        alone_s: the least time of steps during which nothing is written.
        settle_s: the time after a checkpoint during which steps are not counted.
    """

    size: Size
    interval_s: float
    intervals: int
    rounds: int
    steps: int
    alone_s: float
    settle_s: float


class Peer:
    """DCP's asynchronous checkpoints, one at a time, each in a folder of its own.

    Args:
        folder: the parent of these folders.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._stager = DefaultStager(StagingOptions(False, False, False, False))
        self._future: Future[Any] | None = None

    @property
    def last(self) -> Path:
        return self._folder / f"peer-{self._count}"

    def save(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Begins a checkpoint."""
        self._count += 1
        saving = dcp.async_save(dict(tensors), checkpoint_id=self.last, async_stager=self._stager)
        self._future = cast("Future[Any]", saving)

    def writing(self) -> bool:
        assert self._future is not None
        return not self._future.done()

    def finish(self) -> int:
        """Waits for the checkpoint, deletes the previous one, and returns its size in bytes."""
        assert self._future is not None
        self._future.result()
        shutil.rmtree(self._folder / f"peer-{self._count - 1}", ignore_errors=True)
        return sum(path.stat().st_size for path in self.last.iterdir())

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Loads the last checkpoint into ``tensors``."""
        dcp.load(dict(tensors), checkpoint_id=self.last)

    def close(self) -> None:
        self._stager.close()


class StallHarness:
    """The model, created when it is first needed, and the measurements on it; requires a process group of one."""

    def __init__(self, extent: Extent, scratch: Path, say: Callable[[str], None]) -> None:
        self._extent, self._scratch, self._say = extent, scratch, say

    @cached_property
    def model(self) -> BigTables:
        keep_freed_memory()
        made = BigTables(self._extent.size)
        for _ in range(WARM):
            made.step()
        return made

    def tracking(self) -> list[float]:
        """Returns by how many percent steps take longer when dirty rows are marked, for each round."""
        steps = self._extent.steps

        def marked() -> float:
            return sum(self.model.step() for _ in range(steps)) / steps

        def unmarked() -> float:
            with self.model.unmarked():
                return marked()

        found = interleave({"with": marked, "without": unmarked}, 2, self._extent.rounds)
        return [100 * (ratio - 1) for ratio in ratios(found["with"], found["without"])]

    def width(self, bits: Bits) -> dict[str, Any]:
        """Measures intervals with our checkpoints of one width and with the peer's, then restores of both."""
        with tempfile.TemporaryDirectory(dir=self._scratch, prefix="stall-") as place:
            folder, peer = CheckpointFolder(Path(place) / "ours", keep=1), Peer(Path(place))
            found: list[dict[str, Any]] = []
            with self._saver(folder, bits, "intermittent") as saver:
                for number in range(self._extent.intervals):
                    found.append(self._interval(saver, peer))
                    self._say(f"{bits} bits, interval {number + 1}: {_summary(found[-1])}")
                saver.finish()
                for interval, written in zip(found, saver.written, strict=True):
                    interval |= {name: value for name, value in written.figures().items() if name != "stall_s"}
            tensors = self.model.tensors()
            restored = {
                "restore_s": seconds(lambda: folder.load("last").fill(self.model.tensor_slices())),
                "peer_restore_s": seconds(lambda: peer.load(tensors)),
            }
            peer.close()
        return {"intervals": found, **restored}

    def all_cores(self, cores: int) -> list[float]:
        """Returns by how many percent steps on all cores take longer while a full fp32 checkpoint is written."""
        before = torch.get_num_threads()
        torch.set_num_threads(cores)
        slower: list[float] = []
        try:
            with tempfile.TemporaryDirectory(dir=self._scratch, prefix="stall-") as place:
                folder = CheckpointFolder(Path(place), keep=1)
                with self._saver(folder, 32, "full") as saver:
                    for _ in range(3):
                        self._steps_for(self._extent.settle_s)
                        alone = self._steps_for(self._extent.alone_s)
                        slower.append(_slower(self._ours(saver)[1], alone))
        finally:
            torch.set_num_threads(before)
        return slower

    def _saver(self, folder: CheckpointFolder, bits: Bits, policy: Policy) -> Saver:
        config = CheckpointsConfig(policy=policy, bits=bits)
        return Saver(folder, config, self.model.shards, self.model.shapes, versions=library_versions())

    def _interval(self, saver: Saver, peer: Peer) -> dict[str, Any]:
        extent, model = self._extent, self.model
        started, steps = time.perf_counter(), model.steps
        changed = model.changed()
        _return_freed_memory()
        for _ in range(WARM):
            model.step()
        _reset_peak()
        stall_s, ours = self._ours(saver)
        our_peak = _peak_bytes()
        self._steps_for(extent.settle_s)
        _return_freed_memory()
        for _ in range(WARM):
            model.step()
        _reset_peak()
        alone = self._steps_for(extent.alone_s)
        alone_peak = _peak_bytes()
        _reset_peak()
        tensors, began = model.tensors(), time.perf_counter()
        peer_stall_s = seconds(lambda: peer.save(tensors))
        theirs = self._steps_while(peer.writing)
        peer_write_s = time.perf_counter() - began
        peer_peak, peer_bytes = _peak_bytes(), peer.finish()
        self._steps_for(extent.settle_s)
        alone += self._steps_for(max(extent.alone_s, started + extent.interval_s - time.perf_counter()))
        return {
            "changed": changed,
            "steps": model.steps - steps,
            "step_s": st.fmean(alone),
            "stall_s": stall_s,
            "slower": _slower(ours, alone),
            "memory_bytes": max(0, our_peak - alone_peak),
            "peer_stall_s": peer_stall_s,
            "peer_write_s": peer_write_s,
            "peer_slower": _slower(theirs, alone),
            "peer_memory_bytes": max(0, peer_peak - alone_peak),
            "peer_bytes": peer_bytes,
        }

    def _ours(self, saver: Saver) -> tuple[float, list[float]]:
        """Saves and takes steps until the checkpoint is written; returns the seconds of the call and of each step."""
        step = self.model.steps
        stall_s = seconds(lambda: saver.save(step, self.model.dense(), {"step": step}))
        return stall_s, self._steps_while(lambda: saver.busy)

    def _steps_while(self, going: Callable[[], bool]) -> list[float]:
        found = [self.model.step()]
        while going():
            found.append(self.model.step())
        return found

    def _steps_for(self, wanted_s: float) -> list[float]:
        end = time.perf_counter() + wanted_s
        return self._steps_while(lambda: time.perf_counter() < end)


def _slower(some: Sequence[float], others: Sequence[float]) -> float:
    """Returns by how many percent the mean of ``some`` exceeds that of ``others``."""
    return 100 * (st.fmean(some) / st.fmean(others) - 1)


def _summary(interval: Mapping[str, Any]) -> str:
    slower = f"{interval['slower']:+.1f} % during ours, {interval['peer_slower']:+.1f} % during the peer's"
    stalled = f"which stalled {1e3 * interval['peer_stall_s']:.0f} ms"
    return f"{interval['steps']} steps, {100 * interval['changed']:.0f} % changed, {slower}, {stalled}"


def _return_freed_memory() -> None:
    """Returns freed memory to the kernel, if the C library is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _reset_peak() -> None:
    """Makes the kernel record the largest resident set of this process anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_bytes() -> int:
    """Returns the largest resident set since :func:`_reset_peak`."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
