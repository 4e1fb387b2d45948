"""Uses runs, manifests, datasets, configs and logs that somebody made to do harm, as a user would.

Each case is made anew: a small run with four checkpoints, its log and its prepared dataset; outside of that folder
another run, and files that are none of the commands' business. Something is put in the place of a file or a name, and
commands are run, each in a process of its own. A case passes if

- nothing outside was written, created or deleted: every path's mode, time of change and content are compared;
- nothing outside was read (Linux's inotify says so), unless the user's own config leads there;
- no pipe was read from or written to, inside or outside: each has something in it, and still has it afterwards;
- no command took more than a minute of processor time, waited for good, or took more than 1.5 GiB of memory besides the
  libraries (a control group);
- none printed a traceback, and each ended with status 0, 1 or 2;
- the file or key at fault was named, where the case says which one that is.

Nothing is timed. Where this machine has no control groups, memory is not bounded, and a note says so.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import small_memory
from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.system.hostile_inputs import configs, logs
from bench.system.hostile_process import Commands, Ended, Seen, watched
from bench.system.hostile_runs import files_of_runs, links, manifests, prepared_datasets
from bench.system.hostile_world import Case, World

GROUPS: dict[str, Callable[[], list[Case]]] = {
    "links": links,
    "manifests": manifests,
    "files of runs": files_of_runs,
    "prepared datasets": prepared_datasets,
    "configs": configs,
    "logs": logs,
}
"""Name -> the cases of a group. A new group, such as requests to a service, is added here."""
QUICK_EVERY = 30
"""A smoke run takes one case in so many of each group."""
JUDGED = ("contained", "special_files_unread", "bounded_memory", "bounded_time", "no_traceback", "named")
_STATUSES = {0, 1, 2}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case.

    Attributes:
        group: its group.
        case: the case.
        ended: how its commands ended.
        seen: what they did that they must not.
    """

    group: str
    case: Case
    ended: tuple[Ended, ...]
    seen: Seen

    def faults(self) -> dict[str, str]:
        """Returns what is wrong: the figure that it counts against, and the details."""
        found: dict[str, str] = {}
        outside = [*self.seen.changed, *(() if self.case.may_read else self.seen.read)]
        if outside:
            found["contained"] = f"outside: {', '.join(outside[:4])}"
        if self.seen.pipes:
            found["special_files_unread"] = f"pipes: {', '.join(self.seen.pipes)}"
        for ended, command in zip(self.ended, self.case.commands, strict=True):
            name = " ".join(command[:2])
            if ended.late:
                found["bounded_time"] = f"{name}: still ran after {ended.seconds:.0f} s"
            elif ended.is_out_of_memory:
                found["bounded_memory"] = f"{name}: {ended.memory / 2**20:.0f} MiB"
            elif ended.has_traceback or ended.status not in _STATUSES:
                last = (ended.output.strip().splitlines() or ["nothing printed"])[-1]
                found["no_traceback"] = f"{name}: status {ended.status}: {last[:200]}"
        if self.case.word and not any(self.case.word in ended.output for ended in self.ended):
            printed = " | ".join(" ".join(ended.output.split())[-120:] for ended in self.ended)
            found["named"] = f"no command names {self.case.word!r}: {printed}"
        return found


def run(context: Context) -> Result:
    commands, outcomes = Commands(), list[Outcome]()
    context.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=context.cache) as folder:
        world = World(Path(folder) / "world")
        world.make()
        for group, make in GROUPS.items():
            cases = make()
            for case in cases[:: QUICK_EVERY if context.quick else 1]:
                outcomes.append(_outcome(group, case, world, commands, Path(folder) / "log"))
                faults = outcomes[-1].faults()
                context.say(f"{group}: {case.name}: {'; '.join(faults.values()) or 'held'}")
    return Result(_figures(outcomes), 0, 1, _notes(outcomes), cases=_table(outcomes))


def _outcome(group: str, case: Case, world: World, commands: Commands, log: Path) -> Outcome:
    world.reset()
    case.harm(world)
    with watched(world.outside, world.inside) as seen:
        ended = tuple(commands.run(each, world.inside, log) for each in case.commands)
    return Outcome(group, case, ended, seen)


def _figures(outcomes: Sequence[Outcome]) -> tuple[Figure, ...]:
    count, wrong = len(outcomes), Counter(name for outcome in outcomes for name in outcome.faults())
    figures = [Figure(name, "%", (100 * (1 - wrong[name] / count),), f"of {count} cases") for name in JUDGED]
    memory = max(ended.memory for outcome in outcomes for ended in outcome.ended) / 2**20
    seconds = max(ended.seconds for outcome in outcomes for ended in outcome.ended)
    return (
        *figures,
        Figure("cases", "", (float(count),)),
        Figure("most_memory", "MiB", (memory,), "of one command, besides the libraries"),
        Figure("longest", "s", (seconds,), "one command"),
    )


def _notes(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    missing = small_memory.unavailable()
    wrong = [f"{each.case.name}: {'; '.join(faults.values())}" for each in outcomes if (faults := each.faults())]
    statuses = Counter(ended.status for outcome in outcomes for ended in outcome.ended)
    return (
        *((f"memory was not bounded: {missing}",) if missing else ()),
        "commands by status: " + ", ".join(f"{count} with {status}" for status, count in sorted(statuses.items())),
        *wrong[:30],
    )


def _table(outcomes: Sequence[Outcome]) -> tuple[tuple[str, ...], ...]:
    counts = Counter(outcome.group for outcome in outcomes)
    held = Counter(outcome.group for outcome in outcomes if not outcome.faults())
    commands = Counter[str]()
    for outcome in outcomes:
        commands[outcome.group] += len(outcome.ended)
    rows = ((group, str(count), str(commands[group]), str(held[group])) for group, count in counts.items())
    return (("cases of", "cases", "commands", "held"), *rows)


def _missing() -> str | None:
    return None if Path("/proc/self/fd").is_dir() else "pipes and inotify of Linux"


HOSTILE = Benchmark(
    name="hostile",
    claim="A run, dataset, config or log from somebody else does no harm outside of its folder, and takes no memory or "
    "time without bounds; what is wrong is named without a traceback.",
    targets={name: Target(100.0) for name in JUDGED},
    depends_on=("bench/system/hostile.py", "src/ziggurat/cli/main.py", "src/ziggurat/cli/train.py"),
    run=run,
    missing=_missing,
)
