"""Compares several snapshots of a placement policy that propose together with the last policy, at equal samples.

The policy is AutoShard's. It is trained on synthetic tasks of the training half of the pool, evaluated by the shipped
cost network. All contestants see the same number of tasks and episodes in training, and may make the same number of
proposals, of which the cost network takes the best:

- ``last``: the last policy of a training with a constant rate, as the product trains it;
- ``cyclical_last``: the last policy of a training with the cyclical rate;
- ``seerl``: snapshots of the latter, chosen on tasks that neither train nor judge;
- ``plain_snapshots``: the same of the former, at the same steps;
- ``independent``: policies trained on their own, each with its share of the samples.

Tasks of the test half judge, those that the greedy rule can place. A ratio is the seconds of the best proposal over
those of the greedy rule, without and with the exchanges that the planner ends with; the greedy placement is among the
starts of these, as in the planner. Where no proposal fits into the devices' memory, the greedy placement is taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.leads import lead
from bench.provenance import digest
from bench.resumable_cases import ResumableCases
from ziggurat.planning.autoshard.cost_network import CostNetwork
from ziggurat.planning.autoshard.learned import learned_costs, learned_policy
from ziggurat.planning.autoshard.learning import draw_task, train_on_synthetic_tasks
from ziggurat.planning.autoshard.policy import LR, Learner, Policy
from ziggurat.planning.autoshard.pool import table_pool, train_test_halves
from ziggurat.planning.autoshard.proposers import CHOOSING_TASKS, DIVERSITY, TOLERANCE, choose_proposers, proposals
from ziggurat.planning.autoshard.task import Task, greedy, improved_by_swaps
from ziggurat.policies.schedule import CyclicalRate

SEEDS, CYCLES, CYCLE, MEMBERS = 5, 5, 40, 3
"""Seeds; cycles of a training; calls of the training in a cycle, of ten updates each; members of an ensemble."""
PROPOSALS = 33
JUDGING = 100
"""Tasks that judge; members are chosen as in the product, by as many tasks, with the same λ and δ."""
METHODS = ("untrained", "last", "cyclical_last", "seerl", "plain_snapshots", "independent")
EXCHANGED = 3
"""The best proposals whose exchanges are tried, as the planner does."""

Ratios = dict[str, dict[str, list[float]]]


@cache
def _network() -> CostNetwork:
    return learned_costs(None).network


def _tasks(half: int, count: int, seed: int) -> list[Task]:
    tables, draw = train_test_halves(table_pool())[half], np.random.default_rng([seed, 43])
    every = (draw_task(tables, draw).task(_network()) for _ in itertools.count())
    return list(itertools.islice((task for task in every if not task.overflow(greedy(task))), count))


def _trained(seed: int, rate: Callable[[int], float], calls: int, cycle: int) -> list[Policy]:
    """Returns the snapshots of a training at the ends of its cycles."""
    learner, draw = Learner(Policy.untrained(seed), seed), np.random.default_rng([seed, 44])
    tables, found = train_test_halves(table_pool())[0], list[Policy]()
    for call in range(1, calls + 1):
        learner.set_rate(rate(call))
        train_on_synthetic_tasks(learner, _network(), tables, draw)
        if call % cycle == 0:
            found.append(learner.policy)
    return found


def _judged(policies: Sequence[Policy], tasks: Sequence[Task], seed: int) -> dict[str, list[float]]:
    """Returns the ratios to the greedy rule of each task, without and with exchanges."""
    proposed: list[float] = []
    exchanged: list[float] = []
    for number, task in enumerate(tasks):
        draw = np.random.default_rng([seed, number])
        found = proposals(policies, task, PROPOSALS - len(policies), draw)
        legal = sorted((each for each in found if not task.overflow(each)), key=task.seconds)
        rule = greedy(task)
        by_rule = task.seconds(rule)
        proposed.append(min((task.seconds(each) for each in legal), default=by_rule) / by_rule)
        starts = [rule, *legal[:EXCHANGED]]
        exchanged.append(min(task.seconds(improved_by_swaps(task, each)) for each in starts) / by_rule)
    return {"proposed": proposed, "exchanged": exchanged}


def measured(seed: int, cycle: int, judging: int, choosing: int) -> Ratios:
    """Trains with one seed and returns method -> ratios of each task."""
    calls = CYCLES * cycle
    plain = _trained(seed, lambda call: LR, calls, cycle)
    cyclical = _trained(seed, CyclicalRate(LR, calls, CYCLES).rate, calls, cycle)
    own = max(1, calls // MEMBERS)
    independent = [_trained(1000 + MEMBERS * seed + each, lambda call: LR, own, own)[-1] for each in range(MEMBERS)]
    chooses = _tasks(0, choosing, 10_000 + seed)
    chosen = {
        name: [each[place] for place in choose_proposers(each, chooses, MEMBERS).members]
        for name, each in (("seerl", cyclical), ("plain_snapshots", plain))
    }
    contestants = {
        "untrained": [Policy.untrained(seed)],
        "last": plain[-1:],
        "cyclical_last": cyclical[-1:],
        **chosen,
        "independent": independent,
    }
    judges = _tasks(1, judging, 20_000 + seed)
    found = {name: _judged(policies, judges, seed) for name, policies in contestants.items()}
    return {**found, "shipped": _judged([learned_policy(None)], judges, seed)}


def run(context: Context) -> Result:
    seeds, cycle, judging, choosing = (1, 1, 4, 3) if context.quick else (SEEDS, CYCLE, JUDGING, CHOOSING_TASKS)
    path = Path(context.cache) / f"seerl_placement{'-quick' * context.quick}.jsonl"
    resumable = ResumableCases(path, digest(ROOT, SEERL_PLACEMENT.depends_on))
    every: list[Ratios] = []
    cases: list[tuple[str, ...]] = [("seed", "method", "best proposal over greedy", "after exchanges")]
    for seed in range(seeds):
        ratios: Ratios = resumable.get(str(seed), partial(measured, seed, cycle, judging, choosing))
        every.append(ratios)
        for name, each in ratios.items():
            cases.append((str(seed), name, *(f"{np.mean(each[kind]):.4f}" for kind in ("proposed", "exchanged"))))
            context.say(", ".join(cases[-1]))
    figures: list[Figure] = []
    for kind, note in (("proposed", "the best proposal"), ("exchanged", "the best after exchanges")):
        for name in (*METHODS, "shipped"):
            samples = tuple(float(np.mean(each[name][kind])) for each in every)
            figures.append(Figure(f"{name}.{kind}", "x", samples, f"seconds of {note}, over greedy's", "mean"))
        # What the ensemble gains over the last policy is in part what the cyclical rate alone gains.
        pairs = [("seerl", name) for name in METHODS if name != "seerl"]
        for mine, theirs in (*pairs, ("cyclical_last", "last")):
            lower = tuple(
                float(100 * np.mean(1 - np.array(each[mine][kind]) / np.array(each[theirs][kind]))) for each in every
            )
            figures.append(lead(f"{mine}.{kind}_below_{theirs}", "%", lower, "a seed each; above 0 is faster"))
    resumable.forget()
    notes = (
        f"{seeds} seeds; {CYCLES} cycles of {10 * cycle} updates with 10 episodes each; {MEMBERS} members, λ = "
        f"{DIVERSITY:g}, δ = {TOLERANCE:g} of the range of the returns; {PROPOSALS} proposals for each contestant; "
        f"{choosing} tasks choose, {judging} others judge, of tables that trained no policy",
        "independent: each member has a third of the updates; cyclical_last: what the cyclical rate does alone; "
        "untrained: the policy before its first update, which follows the greedy rule with some noise",
    )
    return Result(tuple(figures), 0, seeds, notes, {}, tuple(cases))


SEERL_PLACEMENT = Benchmark(
    name="seerl_placement",
    claim="Snapshots of one training propose faster placements than the last policy, that of the same cyclical rate, "
    "and no training at all, at equal samples and proposals.",
    targets={
        f"seerl.{kind}_below_{rival}": Target(0.0, "more than")
        for kind in ("proposed", "exchanged")
        for rival in ("last", "cyclical_last", "untrained")
    },
    depends_on=(
        "bench/micro/seerl_placement.py",
        "src/ziggurat/planning/autoshard/proposers.py",
        "src/ziggurat/planning/autoshard/shipped",
    ),
    run=run,
)
