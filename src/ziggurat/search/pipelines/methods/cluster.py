"""Ours: clusters of columns learnt by REINFORCE, pipelines drawn for each cluster, and the best found improved.

Four parts share the budget, and each trial says which one proposed it:

1. ``warm``: standard scaling and a few pipelines that all columns share, every other one by the screen.
2. ``screened``: the pipelines that a cheap look at each column by itself prefers, for every column or every cluster.
3. ``episode``: the policy draws a cluster for each column; N assignments give some clusters a pipeline drawn for them,
   and leave the other columns as they are in the best assignment so far. The best score of the N is the reward.
4. ``improved``: all columns of a kind, one cluster or one column of the best are changed at a time; what helped is
   tried together.

Part 3 is the specification's method, but for starting from the best so far and for drawing half of the pipelines by
what the screen says of the cluster. The other parts are ours.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from ziggurat.search.pipelines.clustering.config import PolicyConfig
from ziggurat.search.pipelines.clustering.descriptors import DESCRIPTORS, describe, standardised
from ziggurat.search.pipelines.clustering.policy import ClusterPolicy
from ziggurat.search.pipelines.evaluation import AnyPipeline
from ziggurat.search.pipelines.methods.proposals import Notes, Proposal, Proposals, drawn, standard
from ziggurat.search.pipelines.methods.screen import Screen
from ziggurat.search.pipelines.pipeline import (
    STANDARD,
    CategoricalPipeline,
    Encoder,
    Kind,
    NumericPipeline,
    TimeEncoder,
    TimePipeline,
    possible,
)
from ziggurat.search.pipelines.table import Column, Ints, Table

_WARM: tuple[tuple[NumericPipeline, Encoder, TimeEncoder], ...] = (
    (NumericPipeline(scaler="power"), "target", "cyclic_and_age"),
    (NumericPipeline(scaler="none", discretiser="spline"), "one_hot", "cyclic_and_age"),
    (NumericPipeline(scaler="quantile_normal"), "one_hot", "cyclic"),
    (NumericPipeline(scaler="none", discretiser="quantile_bins"), "target", "age"),
    (NumericPipeline(scaler="power", discretiser="spline"), "target", "cyclic"),
    (NumericPipeline(scaler="min_max"), "hash", "cyclic"),
)
_WARM_SHARE, _EPISODE_SHARE = 0.15, 0.5
_FEWEST_PIPELINES, _FEWEST_EPISODES = 3, 10
_AT_ONCE = 4
_KEEP = 0.5
_SCREENED = 0.5


def cluster(table: Table, rows: Ints, seed: int, budget: int, config: PolicyConfig, notes: Notes) -> Proposals:
    """Proposes pipelines as the module says.

    Args:
        table: the table.
        rows: the training rows of one fold, on which descriptors and the screen are computed.
        seed: seeds the network and all draws.
        budget: evaluations that will be asked for.
        config: how clusters are learnt.
        notes: gets clusters, episodes and descriptors.
    """
    return _Search(table, rows, seed, budget, config, notes).run()


class _Search:
    def __init__(self, table: Table, rows: Ints, seed: int, budget: int, config: PolicyConfig, notes: Notes) -> None:
        self.table, self.budget, self.config, self.notes = table, budget, config, notes
        self.random = np.random.default_rng([seed, 6])
        descriptors = standardised(describe(table, rows))
        self.screen = Screen(table, rows, seed)
        left = int(_EPISODE_SHARE * budget)
        self.many = min(config.pipelines, max(_FEWEST_PIPELINES, left // _FEWEST_EPISODES))
        self.episodes = min(config.episodes, left // self.many)
        self.policy = ClusterPolicy(descriptors, config, seed, self.episodes)
        notes.descriptors, notes.descriptor_names = descriptors, DESCRIPTORS
        self.best = standard(table).pipelines
        self.best_score = -np.inf
        self.asked = 0

    def run(self) -> Proposals:
        yield from self._asked([standard(self.table)])
        warm = self._warm()[: max(1, int(_WARM_SHARE * self.budget))]
        yield from self._asked(warm)
        yield from self._asked(self._screened())
        for _ in range(self.episodes):
            yield from self._episode(self.many)
            self._note()
        while True:
            before = self.asked
            yield from self._improve()
            self._note()
            if self.asked == before:
                yield from self._episode(self.many)
                self._note()

    def _asked(self, proposals: Sequence[Proposal]) -> Generator[list[Proposal], list[float], list[float]]:
        """Asks for proposals, and keeps the best."""
        scores = yield list(proposals)
        self.asked += len(proposals)
        for proposal, score in zip(proposals, scores, strict=True):
            if score > self.best_score:
                self.best, self.best_score = dict(proposal.pipelines), score
        return scores

    def _note(self) -> None:
        numbers = self.policy.likeliest()
        self.notes.clusters = {each.name: int(number) for each, number in zip(self.table.columns, numbers, strict=True)}
        self.notes.coordinates = self.policy.coordinates()

    def _warm(self) -> list[Proposal]:
        made: list[Proposal] = []
        for numeric, encoder, time in _WARM:
            category, moment = CategoricalPipeline(encoder=encoder), TimePipeline(encoder=time)
            of_kind: dict[Kind, AnyPipeline] = {"numeric": numeric, "categorical": category, "time": moment}
            made.append(Proposal("warm", {each.name: of_kind[each.kind] for each in self.table.columns}))
        kinds = self._kinds()
        ranked: dict[Kind, list[AnyPipeline]] = {
            members[0].kind: self.screen.ranked(members, self._options(members))[1] for members in kinds
        }
        for rank in range(len(_WARM)):
            by_rank: dict[Kind, AnyPipeline] = {
                kind: options[min(rank, len(options) - 1)] for kind, options in ranked.items()
            }
            made.append(Proposal("warm", {each.name: by_rank[each.kind] for each in self.table.columns}))
        return [each for pair in zip(made[: len(_WARM)], made[len(_WARM) :], strict=True) for each in pair]

    def _kinds(self) -> list[list[Column]]:
        """Returns the columns of each kind."""
        return self._groups(np.zeros(len(self.table.columns), np.int64))

    def _screened(self) -> list[Proposal]:
        """Returns the best of the screen for every column, for every cluster, and for columns where it gains most."""
        by_column = {each.name: self._favourite([each]) for each in self.table.columns}
        by_cluster: dict[str, AnyPipeline] = {}
        numbers = self.policy.likeliest()
        for members in self._groups(numbers):
            favourite = self._favourite(members)
            by_cluster |= {each.name: favourite for each in members}
        gains = {name: self._gain(name, pipeline) for name, pipeline in by_column.items()}
        half = float(np.median(list(gains.values())))
        most = {
            name: pipeline if gains[name] > max(half, 0.0) else self.best[name] for name, pipeline in by_column.items()
        }
        return [Proposal("screened", chosen) for chosen in (by_column, by_cluster, most)]

    def _gain(self, name: str, pipeline: AnyPipeline) -> float:
        return self.screen.gain(name, pipeline) - self.screen.gain(name, STANDARD[pipeline.kind])

    def _favourite(self, members: list[Column]) -> AnyPipeline:
        return self.screen.ranked(members, self._options(members))[1][0]

    def _options(self, members: list[Column]) -> tuple[AnyPipeline, ...]:
        options = possible(members[0].kind, has_missing=any(each.has_missing for each in members))
        first = STANDARD[members[0].kind]
        return (first, *(each for each in options if each != first))  # of equal gains, standard scaling is first

    def _groups(self, numbers: Ints) -> list[list[Column]]:
        """Returns the columns of each cluster and kind."""
        groups: dict[tuple[int, Kind], list[Column]] = {}
        for column, number in zip(self.table.columns, numbers, strict=True):
            groups.setdefault((int(number), column.kind), []).append(column)
        return [groups[key] for key in sorted(groups)]

    def _drawn(self, members: list[Column]) -> AnyPipeline:
        """Returns a pipeline for a cluster: by the screen's ranks, or any with the same probability."""
        if self.random.random() < _SCREENED:
            weights, options = self.screen.ranked(members, self._options(members))
            return options[int(self.random.choice(len(options), p=weights))]
        missing = any(each.has_missing for each in members)
        return drawn(members[0].kind, has_missing=missing, random=self.random)

    def _episode(self, many: int) -> Generator[list[Proposal], list[float], None]:
        assignment = self.policy.draw()
        groups = self._groups(assignment)
        proposals: list[Proposal] = []
        for _ in range(many):
            kept = self.random.random(len(groups)) < _KEEP
            kept[int(self.random.integers(len(groups)))] = False
            chosen = dict(self.best)
            for members, keep in zip(groups, kept, strict=True):
                if not keep:
                    pipeline = self._drawn(members)
                    chosen |= {each.name: pipeline for each in members}
            proposals.append(Proposal("episode", chosen))
        scores = yield from self._asked(proposals)
        reward = max(scores)
        if np.isfinite(reward):
            self.notes.episodes.append(self.policy.learn(assignment, reward))

    def _improve(self) -> Generator[list[Proposal], list[float], None]:
        """Changes some clusters and columns of the best, each by itself, then together what helped."""
        groups = self._groups(self.policy.likeliest())
        single = [[each] for each in self.table.columns]
        members = list(
            {tuple(each.name for each in some): some for some in (*self._kinds(), *groups, *single)}.values()
        )
        picked = self.random.permutation(len(members))[:_AT_ONCE]
        changes: list[dict[str, AnyPipeline]] = []
        for place in picked:
            pipeline = self._drawn(members[int(place)])
            changes.append({each.name: pipeline for each in members[int(place)]})
        base, before = dict(self.best), self.best_score
        scores = yield from self._asked([Proposal("improved", {**base, **change}) for change in changes])
        helped = [change for change, score in zip(changes, scores, strict=True) if score > before]
        if len(helped) > 1:
            together = dict(base)
            for change in reversed(helped):
                together |= change
            yield from self._asked([Proposal("improved", together)])
