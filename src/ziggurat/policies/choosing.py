"""Chooses the members of a run's ensemble, and how they act, in episodes that decide nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import ConfigError, RunFolderError
from ziggurat.core.files import locked_folder
from ziggurat.core.progress import Progress, Silent
from ziggurat.policies import run_folder
from ziggurat.policies.actions import divergence_matrix
from ziggurat.policies.config import PoliciesConfig
from ziggurat.policies.records import Candidate, Rule, SelectionRecord
from ziggurat.policies.selection import Selection, select

if TYPE_CHECKING:
    from ziggurat.policies.agents.member import Member
    from ziggurat.policies.agents.play import Played


@dataclass(frozen=True, slots=True)
class _Subset:
    weight: float
    selection: Selection


def choose(
    folder: Path | str, config: PoliciesConfig | None = None, *, progress: Progress | None = None
) -> SelectionRecord:
    """Chooses members and rule, and writes ``selection.json``.

    All snapshots play the same episodes. Divergences are computed on states of these, in equal shares from each
    snapshot: at most as many as the one with the shortest episodes has. For each λ the best subset is played with each
    rule. The ensemble with the greatest mean return is taken, the first of equal ones, or the best snapshot alone if
    that brought more.

    Args:
        folder: the run.
        config: its config with other settings of ``selection``, ``ensemble`` or ``evaluation``, which are kept;
            default: as it is.
        progress: where to show progress.

    Raises:
        RunFolderError: the folder is no run of policies, is damaged, lacks snapshots, or was trained otherwise.
        ConfigError: the config says that continuous actions are drawn.
        EnvironmentMismatch: the extra ``rl`` is not installed.
    """
    from ziggurat.policies.agents.load_members import load_members

    folder, progress = Path(folder), progress or Silent()
    run_folder.read_config(folder)
    with locked_folder(folder, "choosing policies"):
        known = run_folder.read_config(folder)
        config = config or known
        run_folder.check_same(folder, known, config, ("task", "algorithm", "training"))
        snapshots = finished_snapshots(folder, config)
        members = load_members(folder, config, snapshots)
        rules = rules_of(config, members[0].action_space)
        seeds = range(config.selection.first_seed, config.selection.first_seed + config.selection.episodes)
        played = _alone(config, members, rules[0], seeds, progress)
        states = _equal_shares([each.observations for each in played if each.observations is not None])
        divergence_MM = divergence_matrix([member.actions(states) for member in members])
        means = [float(np.mean(each.returns)) for each in played]
        tolerance = config.selection.tolerance * (max(means) - min(means))
        subsets: dict[tuple[int, ...], _Subset] = {}
        for weight in config.selection.diversity:
            found = select(means, divergence_MM, config.selection.members, weight, tolerance)
            subsets.setdefault(found.members, _Subset(weight, found))
        cycles = [each.cycle for each in snapshots]
        candidates, steps = _together(config, members, cycles, list(subsets.values()), rules, seeds, progress)
        best = int(np.argmax(means))
        candidates.append(Candidate(0.0, (cycles[best],), rules[0], 0.0, tuple(played[best].returns)))
        record = SelectionRecord(
            cycles=tuple(cycles),
            returns=tuple(tuple(each.returns) for each in played),
            divergence=tuple(tuple(row) for row in divergence_MM.tolist()),
            candidates=tuple(candidates),
            chosen=int(np.argmax([each.mean for each in candidates])),
            tolerance=tolerance,
            steps=steps + sum(each.steps for each in played),
            episodes=(seeds.start, seeds.stop),
            temperature=config.ensemble.temperature,
            size=config.selection.members,
            drawn=config.is_drawn,
        )
        for name in (run_folder.EVALUATION_FILE, run_folder.FILM_FILE):  # of another choice
            (folder / name).unlink(missing_ok=True)
        run_folder.write_config(folder, config)
        run_folder.write_record(folder, run_folder.SELECTION_FILE, record)
    return record


def _alone(
    config: PoliciesConfig, members: Sequence[Member], rule: Rule, seeds: Sequence[int], progress: Progress
) -> list[Played]:
    """Returns what each snapshot brings alone, with its share of the states on which divergences are computed."""
    from ziggurat.policies.agents.ensemble_policy import acting
    from ziggurat.policies.agents.play import play

    share = -(-config.selection.states // len(members))
    progress.start("snapshots", len(members), "snapshots")
    played: list[Played] = []
    for number, member in enumerate(members):
        act = acting(config, [member], rule, seeds).act
        played.append(play(config.task, act, seeds, keep=share, keep_seed=number))
        progress.advance(number + 1, **{"return": f"{np.mean(played[-1].returns):.4g}"})
    progress.finish()
    return played


def _equal_shares(states: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Returns as many states of each snapshot as the one with the fewest has, in one array."""
    share = min(map(len, states))
    draw = np.random.default_rng(0)
    return np.concatenate([each[draw.permutation(len(each))[:share]] for each in states])


def _together(
    config: PoliciesConfig,
    members: Sequence[Member],
    cycles: Sequence[int],
    subsets: Sequence[_Subset],
    rules: Sequence[Rule],
    seeds: Sequence[int],
    progress: Progress,
) -> tuple[list[Candidate], int]:
    """Returns what each subset brings by each rule, and the steps of these episodes."""
    from ziggurat.policies.agents.ensemble_policy import acting
    from ziggurat.policies.agents.play import play

    candidates: list[Candidate] = []
    steps = 0
    progress.start("ensembles", len(subsets) * len(rules), "ensembles")
    for subset, rule in itertools.product(subsets, rules):
        chosen = subset.selection.members
        policy = acting(config, [members[place] for place in chosen], rule, seeds)
        together = play(config.task, policy.act, seeds)
        of_cycles = tuple(cycles[place] for place in chosen)
        candidates.append(
            Candidate(subset.weight, of_cycles, rule, subset.selection.diversity, tuple(together.returns))
        )
        steps += together.steps
        progress.advance(len(candidates), **{"return": f"{candidates[-1].mean:.4g}"})
    progress.finish()
    return candidates, steps


def finished_snapshots(folder: Path, config: PoliciesConfig) -> list[run_folder.SnapshotRecord]:
    """Returns the snapshots of a run that is trained to its end.

    Raises:
        RunFolderError: it is not, or is damaged.
    """
    record = run_folder.read_record(folder)
    if record is None or record.steps < config.training.steps:
        done = 0 if record is None else record.steps
        raise RunFolderError(
            f"{folder}: {done:,} of {config.training.steps:,} steps are trained",
            "finish the training first: ziggurat policies train CONFIG",
        )
    found = run_folder.read_snapshots(folder)
    missing = set(range(1, config.training.cycles + 1)) - {each.cycle for each in found}
    if missing:
        raise RunFolderError(
            f"{folder}: the snapshot of cycle {min(missing)} is missing",
            "restore the folder from a copy, or train again in another one with --run",
        )
    return found


def rules_of(config: PoliciesConfig, action_space: object) -> tuple[Rule, ...]:
    """Returns the rules that a config allows for these actions.

    Raises:
        ConfigError: the config says that continuous actions are drawn.
    """
    from gymnasium import spaces

    if config.ensemble.drawn and not isinstance(action_space, spaces.Discrete):
        raise ConfigError(
            f"ensemble.drawn: {config.task.env} has continuous actions, which are never drawn",
            "leave ensemble.drawn out",
        )
    return config.ensemble.discrete if isinstance(action_space, spaces.Discrete) else config.ensemble.continuous
