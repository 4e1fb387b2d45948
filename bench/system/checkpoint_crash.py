"""SIGKILL at any moment of a training, and damaged files: what can be restored, and what is said.

**Kills.** A small training (three tables, one split by rows over two ranks; dropout; a checkpoint every five steps) is
killed again and again, alone in a process and as two ranks under the launcher, where either all processes are killed
or one rank, and the other has to end by itself. Four kinds of moments take turns, each followed by a random delay:
after a checkpoint was committed; as soon as the journal has the line that precedes a snapshot; as soon as the folder of
the next checkpoint is there; as soon as all its data files are there, and no manifest. What such a kill really hit is
told by what it left, which is counted. After each kill the newest checkpoint must not be older than the newest that was
seen before, its files must be what was written, all its tensors and its state those of an undisturbed run at the same
step, bit for bit, and training has to go on from it: the same run is the next one to be killed, until it comes to its
end, whose figures must be the undisturbed run's. Every run has the next policy.

**Damages.** Of a checkpoint and the chain of deltas that it needs a random file is truncated, changed by a bit, deleted
or replaced by a file of another checkpoint; reading it must name that file and leave every number of the model as it
was.

Not measured: power failures, which also take what the kernel has not written yet (files and folders are fsynced before
a manifest is, which nothing here can show); object stores; several hosts. Nothing is timed: what other work on the
machine changes is where in the code a kill falls. Delays and files are drawn from seeds, the moment of a kill is not.
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
from bench.system.checkpoint_damage import HARMS, chain, damaged
from bench.system.crash_moments import MOMENTS, Watched, seen
from bench.system.crash_training import (
    POLICIES,
    SAVE_EVERY,
    Alone,
    Ranks,
    Victim,
    digest,
    digests,
    figures,
    write_training,
)
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.core.errors import ZigguratError

KINDS: dict[str, type[Alone] | type[Ranks]] = {"1 process": Alone, "2 ranks": Ranks}
KILLS, QUICK_KILLS = {"1 process": 150, "2 ranks": 60}, {"1 process": 4}
DAMAGES, QUICK_DAMAGES = 400, 24
STEPS, QUICK_STEPS = 300, 40
ALL = 10**6


class Ordeal:
    """Runs of one kind, one after the other, each killed until it has come to its end.

    Args:
        folder: of the training (:func:`~bench.system.crash_training.write_training`).
        kind: of :data:`KINDS`.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder, self._kind, self._start = folder, kind, KINDS[kind]
        self._runs = 0
        undisturbed = self._start(folder, "consecutive", self.undisturbed, keep=ALL)
        said = undisturbed.end()
        self._expected, self._figures = digests(self.undisturbed), figures(self.undisturbed)
        assert self._figures is not None, said
        manifest = CheckpointFolder(self.undisturbed / "checkpoints").manifest(SAVE_EVERY)
        assert manifest is not None
        self._files = len(manifest.files)

    @property
    def undisturbed(self) -> Path:
        return self._folder / f"undisturbed {self._kind}"

    @property
    def _run(self) -> Path:
        return self._folder / f"{self._kind} {self._runs}"

    def kill(self, number: int) -> dict[str, Any]:
        """One kill, and what is wrong afterwards; runs that end before it comes are checked and not counted.

        Returns:
            ``moment``, ``hit``, ``left``, ``step``, ``wrong``; the last is empty where nothing is.
        """
        draw, moment = np.random.default_rng([number, len(self._kind)]), MOMENTS[number % len(MOMENTS)]
        while True:
            policy = POLICIES[self._runs % len(POLICIES)]
            watched = Watched(self._run, self._files)
            before, victim = watched.committed(), self._start(self._folder, policy, self._run)
            further = before + SAVE_EVERY * int(draw.integers(1, 4))
            come = seen(lambda: watched.committed() >= further, victim.alive)  # noqa: B023 - called here alone
            if come and watched.wait(moment, victim.alive):
                time.sleep(draw.uniform(0, moment.within_s))
                newest = watched.committed()
                hit = victim.kill(draw)
                if hit and figures(self._run) is None:
                    left = watched.left()
                    step, wrong = self._checked(newest)
                    self._runs += bool(wrong)  # what is broken would be broken at the next kill too
                    return {"moment": moment.name, "hit": hit, "left": left, "step": step, "wrong": wrong}
            wrong = self._ended(victim)
            if wrong:
                self._runs += 1
                return {"moment": moment.name, "hit": "", "left": "", "step": before, "wrong": wrong}
            shutil.rmtree(self._run)
            self._runs += 1

    def _checked(self, newest: int) -> tuple[int, str]:
        """The step of the checkpoint that is there, and what is wrong with it."""
        folder = CheckpointFolder(self._run / "checkpoints")
        step = folder.last() or 0
        if step < newest:
            return step, f"step {newest} was there, and {step} is left"
        try:
            saved = folder.load(step)
            saved.verify()
            found = digest(saved)
        except ZigguratError as error:
            return step, error.problem
        return step, "" if found == self._expected.get(step) else f"step {step} differs from the undisturbed run's"

    def _ended(self, victim: Victim) -> str:
        """What is wrong with a run that has come to its end."""
        said = victim.end()
        found = figures(self._run)
        if found is None:
            return f"training did not go on: {said}"
        return "" if found == self._figures else "its figures differ from the undisturbed run's"


def run(context: Context) -> Result:
    kills = QUICK_KILLS if context.quick else KILLS
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="checkpoint-crash-") as scratch:
        folder = Path(scratch).resolve()
        resumable = ResumableCases(
            (folder if context.quick else context.cache) / "checkpoint-crash.jsonl",
            digest_of(ROOT, CHECKPOINT_CRASH.depends_on),
        )
        said = (f"{len(resumable)} cases in an earlier sitting",) if len(resumable) else ()
        write_training(folder, QUICK_STEPS if context.quick else STEPS)
        found: dict[str, list[dict[str, Any]]] = {}
        harmed: list[dict[str, Any]] = []
        for kind, count in kills.items():
            ordeal = Ordeal(folder, kind)
            found[kind] = []
            for number in range(count):
                found[kind].append(resumable.get(f"{kind}, {number}", partial(ordeal.kill, number)))
                context.say(f"{kind}, kill {number + 1} of {count}: {_summary(found[kind][-1])}")
            if kind == next(iter(kills)):
                count = QUICK_DAMAGES if context.quick else DAMAGES
                harmed = resumable.get("damages", partial(_damages, ordeal.undisturbed, count))
                wrong = [each for each in harmed if not (each["named"] and each["clean"])]
                context.say(f"{count} damages, {len(wrong)} not as they should be")
        resumable.forget()
    return Result(
        (*_kill_figures(found), *_damage_figures(harmed)),
        0,
        sum(map(len, found.values())),
        (*_notes(found, harmed, context.quick), *said),
        cases=_cases(found),
    )


def _damages(run: Path, count: int) -> list[dict[str, Any]]:
    """Damages of a checkpoint of a finished run that needs several others."""
    folder, draw = CheckpointFolder(run / "checkpoints"), np.random.default_rng(0)
    step = folder.steps()[-2]  # the last one is full
    paths, found = chain(folder, step), list[dict[str, Any]]()
    for number in range(count):
        path, harm = paths[int(draw.integers(len(paths)))], HARMS[number % len(HARMS)]
        others = [each for each in paths if each.suffix == path.suffix and each.read_bytes() != path.read_bytes()]
        other = others[int(draw.integers(len(others)))].read_bytes()
        found.append(asdict(damaged(folder, step, path, harm, other, draw)))
    return found


def _kill_figures(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Figure]:
    every = [each for kills in found.values() for each in kills]
    shares = {"kills_survived": every, **{f"survived_{kind.replace(' ', '_')}": kills for kind, kills in found.items()}}
    return [
        Figure(name, "%", (_share([not each["wrong"] for each in kills]),), f"of {len(kills)}")
        for name, kills in shares.items()
    ]


def _damage_figures(harmed: Sequence[Mapping[str, Any]]) -> list[Figure]:
    note = f"of {len(harmed)} damaged files, in {len({each['file'] for each in harmed})} places"
    return [
        Figure("damages_named", "%", (_share([each["named"] for each in harmed]),), note),
        Figure("nothing_loaded", "%", (_share([each["clean"] for each in harmed]),), "of the same"),
    ]


def _share(held: Sequence[bool]) -> float:
    return 100 * sum(held) / len(held)


def _cases(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[tuple[str, ...], ...]:
    """Kills by kind, moment, whom they hit and what they left."""
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
    found: Mapping[str, Sequence[Mapping[str, Any]]], harmed: Sequence[Mapping[str, Any]], quick: bool
) -> tuple[str, ...]:
    wrong = [f"{kind}: {each['wrong']}" for kind, kills in found.items() for each in kills if each["wrong"]]
    wrong += [f"{each['harm']} {each['file']}: {each['said']}" for each in harmed if not each["named"]]
    wrong += [f"{each['harm']} {each['file']}: numbers were loaded" for each in harmed if not each["clean"]]
    left = Counter(each["left"] for kills in found.values() for each in kills)
    return (
        *(("four kills of one process: ranks are left out",) if quick else ()),
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
