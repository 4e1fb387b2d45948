"""Chooses the members of a run's ensemble, and how they act, in episodes that decide nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import locked_folder
from ziggurat.core.progress import Progress, Silent
from ziggurat.policies import run_folder
from ziggurat.policies.actions import divergence_matrix
from ziggurat.policies.config import PoliciesConfig
from ziggurat.policies.records import Candidate, Rule, SelectionRecord
from ziggurat.policies.selection import Selection, select


@dataclass(frozen=True, slots=True)
class _Subset:
    weight: float
    selection: Selection


def choose(
    folder: Path | str, config: PoliciesConfig | None = None, *, progress: Progress | None = None
) -> SelectionRecord:
    """Chooses members and rule, and writes ``selection.json``.

    All snapshots play the same episodes. Divergences are computed on states of these, in equal shares from each
    snapshot. For each λ the best subset is played with each rule, and the ensemble with the greatest mean return is
    taken, the first of equal ones.

    Args:
        folder: the run.
        config: its config with other settings of ``selection``, ``ensemble`` or ``evaluation``, which are kept;
            default: as it is.
        progress: where to show progress.

    Raises:
        RunFolderError: the folder is no run of policies, is damaged, or has no snapshots or only some of them.
        EnvironmentMismatch: the extra ``rl`` is not installed.
    """
    from ziggurat.policies.agents.ensemble_policy import EnsemblePolicy
    from ziggurat.policies.agents.load_members import load_members
    from ziggurat.policies.agents.play import play

    folder, progress = Path(folder), progress or Silent()
    run_folder.read_config(folder)
    with locked_folder(folder, "choosing policies"):
        known = run_folder.read_config(folder)
        config = config or known
        snapshots = finished_snapshots(folder, config)
        members = load_members(folder, config, snapshots)
        rules = rules_of(config, members[0].action_space)
        seeds = range(config.selection.first_seed, config.selection.first_seed + config.selection.episodes)
        share = -(-config.selection.states // len(members))
        progress.start("snapshots", len(members), "snapshots")
        played = []
        for number, member in enumerate(members):
            played.append(
                play(config.task, EnsemblePolicy([member], rules[0]).act, seeds, keep=share, keep_seed=number)
            )
            progress.advance(number + 1, **{"return": f"{np.mean(played[-1].returns):.4g}"})
        progress.finish()
        states = np.concatenate([each.observations for each in played if each.observations is not None])
        divergence_MM = divergence_matrix([member.actions(states) for member in members])
        means = [float(np.mean(each.returns)) for each in played]
        tolerance = config.selection.tolerance * (max(means) - min(means))
        subsets: dict[tuple[int, ...], _Subset] = {}
        for weight in config.selection.diversity:
            found = select(means, divergence_MM, config.selection.members, weight, tolerance)
            subsets.setdefault(found.members, _Subset(weight, found))
        candidates: list[Candidate] = []
        steps = sum(each.steps for each in played)
        progress.start("ensembles", len(subsets) * len(rules), "ensembles")
        for subset in subsets.values():
            for rule in rules:
                chosen = [members[place] for place in subset.selection.members]
                together = play(config.task, EnsemblePolicy(chosen, rule).act, seeds)
                cycles = tuple(snapshots[place].cycle for place in subset.selection.members)
                candidates.append(
                    Candidate(subset.weight, cycles, rule, subset.selection.diversity, tuple(together.returns))
                )
                steps += together.steps
                progress.advance(len(candidates), **{"return": f"{candidates[-1].mean:.4g}"})
        progress.finish()
        record = SelectionRecord(
            cycles=tuple(each.cycle for each in snapshots),
            returns=tuple(tuple(each.returns) for each in played),
            divergence=tuple(tuple(row) for row in divergence_MM.tolist()),
            candidates=tuple(candidates),
            chosen=int(np.argmax([each.mean for each in candidates])),
            tolerance=tolerance,
            steps=steps,
            episodes=(seeds.start, seeds.stop),
            temperature=config.ensemble.temperature,
        )
        for name in (run_folder.EVALUATION_FILE, run_folder.FILM_FILE):  # of another choice
            (folder / name).unlink(missing_ok=True)
        run_folder.write_config(folder, config)
        run_folder.write_record(folder, run_folder.SELECTION_FILE, record)
    return record


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
    if found[-1].cycle != config.training.cycles:
        raise RunFolderError(
            f"{folder}: the snapshot of the last cycle, {config.training.cycles}, is missing",
            "restore the folder from a copy, or train again in another one with --run",
        )
    return found


def rules_of(config: PoliciesConfig, action_space: object) -> tuple[Rule, ...]:
    """Returns the rules that a config allows for these actions."""
    from gymnasium import spaces

    return config.ensemble.discrete if isinstance(action_space, spaces.Discrete) else config.ensemble.continuous
