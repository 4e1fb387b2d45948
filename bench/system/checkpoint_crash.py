"""Tests that checkpoints restore after SIGKILL at any moment of a training, and that damaged files are reported.

**Kills.** A small training is killed again and again. It has three tables, one of them split by rows over two ranks,
dropout, and a checkpoint every five steps. It runs in a single process, and as two ranks under the launcher. In the
latter case either all processes are killed, or one rank, and the other has to end by itself. A kill follows a random
delay after one of four events, in turns:

- a checkpoint was committed;
- the journal has the line that precedes a snapshot;
- the folder of the next checkpoint exists;
- all of its data files exist, but no manifest.

The files that a kill leaves show what it interrupted; these cases are counted. After each kill,

- the newest checkpoint must not be older than the newest one observed before the kill;
- its files must be complete and unchanged;
- its tensors and its state must equal those of an undisturbed run at the same step, bit for bit;
- training must resume from it.

The resumed run is killed again, until it ends. Its final figures must be those of the undisturbed run. Each run has the
next policy.

**Damages.** A random file of a checkpoint, or of the deltas that it needs, is truncated, changed by a bit, deleted or
replaced by a file of another checkpoint. Loading the checkpoint must name that file and leave the model unchanged.

Power failures, which also lose data that the kernel has not written yet, are not tested (files and folders are fsynced
before the manifest is written, which this benchmark cannot show), nor are object stores and several hosts. Nothing is
timed; other work on the machine only changes where in the code a kill occurs. Delays and files are seeded, but the
moment of a kill is not.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.provenance import digest as digest_of
from bench.resumable_cases import ResumableCases
from bench.system.checkpoint_damage import DAMAGE_KINDS, chain, damaged
from bench.system.crash_moments import MOMENTS, WatchedFolder, wait_until
from bench.system.crash_training import (
    POLICIES,
    SAVE_EVERY,
    SingleProcess,
    TrainingProcess,
    TwoRanks,
    digest,
    digests,
    figures,
    write_training,
)
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.core.errors import ZigguratError

KINDS: dict[str, type[SingleProcess] | type[TwoRanks]] = {"1 process": SingleProcess, "2 ranks": TwoRanks}
KILLS, QUICK_KILLS = {"1 process": 150, "2 ranks": 60}, {"1 process": 4}
DAMAGES, QUICK_DAMAGES = 400, 24
STEPS, QUICK_STEPS = 300, 40
KEEP_ALL = 10**6


class KillSeries:
    """Runs of one kind of training, one after another, each killed and resumed until it ends.

    Args:
        folder: the folder of the training (:func:`~bench.system.crash_training.write_training`).
        kind: the kind of training in :data:`KINDS`.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder, self._kind, self._start = folder, kind, KINDS[kind]
        self._runs = 0
        undisturbed = self._start(folder, "consecutive", self.undisturbed, keep=KEEP_ALL)
        output = undisturbed.end()
        self._expected, self._figures = digests(self.undisturbed), figures(self.undisturbed)
        assert self._figures is not None, output
        manifest = CheckpointFolder(self.undisturbed / "checkpoints").manifest(SAVE_EVERY)
        assert manifest is not None
        self._files = len(manifest.files)

    @property
    def undisturbed(self) -> Path:
        """The run folder of a training that is not killed."""
        return self._folder / f"undisturbed {self._kind}"

    @property
    def _run(self) -> Path:
        return self._folder / f"{self._kind} {self._runs}"

    def kill(self, number: int) -> dict[str, Any]:
        """Kills the current run once and checks it; runs that end before the kill are checked but not counted.

        Returns:
            The ``moment``, the ``hit`` processes, the files ``left``, the ``step`` of the newest checkpoint, and in
            ``wrong`` the problem found, which is empty if there is none.
        """
        draw, moment = np.random.default_rng([number, len(self._kind)]), MOMENTS[number % len(MOMENTS)]
        while True:
            policy = POLICIES[self._runs % len(POLICIES)]
            watched = WatchedFolder(self._run, self._files)
            before, process = watched.committed(), self._start(self._folder, policy, self._run)
            further = before + SAVE_EVERY * int(draw.integers(1, 4))
            come = wait_until(lambda: watched.committed() >= further, process.alive)  # noqa: B023 - called here alone
            if come and watched.wait(moment, process.alive):
                time.sleep(draw.uniform(0, moment.within_s))
                newest = watched.committed()
                hit = process.kill(draw)
                if hit and figures(self._run) is None:
                    left = watched.left()
                    step, wrong = self._checked(newest)
                    self._runs += bool(wrong)  # a broken run would fail at the next kill too
                    return {"moment": moment.name, "hit": hit, "left": left, "step": step, "wrong": wrong}
            wrong = self._ended(process)
            if wrong:
                self._runs += 1
                return {"moment": moment.name, "hit": "", "left": "", "step": before, "wrong": wrong}
            shutil.rmtree(self._run)
            self._runs += 1

    def _checked(self, newest: int) -> tuple[int, str]:
        """Returns the step of the newest checkpoint, and the problem found, if any."""
        folder = CheckpointFolder(self._run / "checkpoints")
        step = folder.last() or 0
        if step < newest:
            return step, f"step {newest} was committed, but the newest is step {step}"
        try:
            saved = folder.load(step)
            saved.verify()
            found = digest(saved)
        except ZigguratError as error:
            return step, error.problem
        return step, "" if found == self._expected.get(step) else f"step {step} differs from the undisturbed run's"

    def _ended(self, process: TrainingProcess) -> str:
        """Returns the problem of a run that has ended, if any."""
        output = process.end()
        found = figures(self._run)
        if found is None:
            return f"training did not resume: {output}"
        return "" if found == self._figures else "its figures differ from the undisturbed run's"


def run(context: Context) -> Result:
    kills = QUICK_KILLS if context.quick else KILLS
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="checkpoint-crash-") as scratch:
        folder = Path(scratch).resolve()
        resumable = ResumableCases(
            (folder if context.quick else context.cache) / "checkpoint-crash.jsonl",
            digest_of(ROOT, CHECKPOINT_CRASH.depends_on),
        )
        resumed = (f"{len(resumable)} cases in an earlier run",) if len(resumable) else ()
        write_training(folder, QUICK_STEPS if context.quick else STEPS)
        found: dict[str, list[dict[str, Any]]] = {}
        damages: list[dict[str, Any]] = []
        for kind, count in kills.items():
            series = KillSeries(folder, kind)
            found[kind] = []
            for number in range(count):
                found[kind].append(resumable.get(f"{kind}, {number}", partial(series.kill, number)))
                context.say(f"{kind}, kill {number + 1} of {count}: {_summary(found[kind][-1])}")
            if kind == next(iter(kills)):
                count = QUICK_DAMAGES if context.quick else DAMAGES
                damages = resumable.get("damages", partial(_damages, series.undisturbed, count))
                wrong = [each for each in damages if not (each["named"] and each["clean"])]
                context.say(f"{count} damages, {len(wrong)} not reported or not clean")
        resumable.forget()
    return Result(
        (*_kill_figures(found), *_damage_figures(damages)),
        0,
        sum(map(len, found.values())),
        (*_notes(found, damages, context.quick), *resumed),
        cases=_cases(found),
    )


def _damages(run: Path, count: int) -> list[dict[str, Any]]:
    """Damages files of a checkpoint that needs several others, and returns the results."""
    folder, draw = CheckpointFolder(run / "checkpoints"), np.random.default_rng(0)
    step = folder.steps()[-2]  # the last one is full
    paths, found = chain(folder, step), list[dict[str, Any]]()
    for number in range(count):
        path, kind = paths[int(draw.integers(len(paths)))], DAMAGE_KINDS[number % len(DAMAGE_KINDS)]
        others = [each for each in paths if each.suffix == path.suffix and each.read_bytes() != path.read_bytes()]
        other = others[int(draw.integers(len(others)))].read_bytes()
        found.append(asdict(damaged(folder, step, path, kind, other, draw)))
    return found


def _kill_figures(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Figure]:
    every = [each for kills in found.values() for each in kills]
    shares = {"kills_survived": every, **{f"survived_{kind.replace(' ', '_')}": kills for kind, kills in found.items()}}
    return [
        Figure(name, "%", (_share([not each["wrong"] for each in kills]),), f"of {len(kills)}")
        for name, kills in shares.items()
    ]


def _damage_figures(damages: Sequence[Mapping[str, Any]]) -> list[Figure]:
    note = f"of {len(damages)} damaged files, in {len({each['file'] for each in damages})} places"
    return [
        Figure("damages_named", "%", (_share([each["named"] for each in damages]),), note),
        Figure("nothing_loaded", "%", (_share([each["clean"] for each in damages]),), "of the same"),
    ]


def _share(held: Sequence[bool]) -> float:
    return 100 * sum(held) / len(held)


def _cases(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[tuple[str, ...], ...]:
    """Returns a table that counts kills by training, moment, processes hit and files left."""
    counts: Counter[tuple[str, ...]] = Counter()
    survived: Counter[tuple[str, ...]] = Counter()
    for kind, kills in found.items():
        for each in kills:
            key = (kind, each["moment"], each["hit"], each["left"])
            counts[key] += 1
            survived[key] += not each["wrong"]
    rows = ((*key, str(count), str(survived[key])) for key, count in sorted(counts.items()))
    return (("training", "killed", "hit", "left behind", "kills", "survived"), *rows)


def _notes(
    found: Mapping[str, Sequence[Mapping[str, Any]]], damages: Sequence[Mapping[str, Any]], quick: bool
) -> tuple[str, ...]:
    wrong = [f"{kind}: {each['wrong']}" for kind, kills in found.items() for each in kills if each["wrong"]]
    wrong += [f"{each['kind']} {each['file']}: {each['error']}" for each in damages if not each["named"]]
    wrong += [f"{each['kind']} {each['file']}: numbers were loaded" for each in damages if not each["clean"]]
    left = Counter(each["left"] for kills in found.values() for each in kills)
    return (
        *(("four kills of one process, none of two ranks",) if quick else ()),
        "left behind: " + ", ".join(f"{count} times {name}" for name, count in left.most_common()),
        *wrong[:10],
    )


def _summary(kill: Mapping[str, Any]) -> str:
    return f"{kill['moment']}, {kill['hit']}, {kill['left']}: {kill['wrong'] or 'step ' + str(kill['step'])}"


CHECKPOINT_CRASH = Benchmark(
    name="checkpoint_crash",
    claim="After SIGKILL at any moment the newest checkpoint restores bit for bit, and a damaged file is always named.",
    targets={name: Target(100.0) for name in ("kills_survived", "damages_named", "nothing_loaded")},
    depends_on=("bench/system/checkpoint_crash.py", "src/ziggurat/cli/train.py"),
    run=run,
)
