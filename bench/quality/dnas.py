"""Whether a super-net finds better models than a hand-made config, random search, TPE and evolution at equal compute.

For each log and each seed of a search: the super-net and its three trainings from scratch; then each other method over
the same space and limits, which begins no trial after as many processor seconds of training as the super-net's search
took. The best of each by validation, and the config as it was, are trained with seeds that no search has seen; their NE
on the test split is compared in pairs of equal seeds. The limits are FLOPs and table bytes of the config as it was, on
the planted log half of its bytes.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.quality.dnas_logs import LOGS, NOISE, SIGNAL, SearchedLog, planted
from bench.resumable_cases import ResumableCases, kept_in_repository
from ziggurat.core.config import parse_config
from ziggurat.core.files import write_json
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.search.architecture.config import ArchitectureSearchConfig
from ziggurat.search.architecture.found import BEST_FILE, FoundArchitectures
from ziggurat.search.architecture.search import search_architecture
from ziggurat.search.architecture.space.composed import PAIRS
from ziggurat.search.architecture.space.decision import chosen
from ziggurat.search.architecture.space.whole_space import WholeSpace
from ziggurat.search.architecture.strategies import POPULATION, RANDOM_TRIALS, Method
from ziggurat.training.experiment import Experiment, load_experiment
from ziggurat.training.preparation import prepare
from ziggurat.training.train import train
from ziggurat.training.train_state import monitored

SEEDS, TRAINING_SEEDS = (0, 1, 2), (101, 102, 103)
MEASURED = "version 3"
"""What the outcomes of a case mean; outcomes of another version are measured again."""
METHODS: tuple[Method, ...] = ("supernet", "random", "tpe", "evolution")
_PRODUCTS = {"factorization_machine", "dot_product", "self_attention", "mask"}
_MIXING = {"linear", "convolution"}
_T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Two-sided 95 % quantiles of Student's t by the number of samples."""
_QUICK: dict[str, Any] = {
    "space": {"layers": 1, "top": {"layers": 1, "widths": [8, 16]}, "blocks": [{"name": "linear", "outputs": 7}]},
    "tables": {"rows": [1.0]},
    "supernet": {"warmup_epochs": 1, "epochs": 1},
    "drawn": 2,
    "retrained": 1,
}


def run(context: Context) -> Result:
    seeds, training_seeds = (SEEDS[:1], TRAINING_SEEDS[:1]) if context.quick else (SEEDS, TRAINING_SEEDS)
    figures: list[Figure] = []
    cases: list[tuple[str, ...]] = [
        ("log", "seed", "default NE", *(f"{method} NE" for method in METHODS), "trials of random", "search, trainings")
    ]
    won: dict[str, list[bool]] = {"default": [], "random": [], "tpe": [], "evolution": []}
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="dnas-") as scratch:
        work = Path(scratch) if context.quick else context.cache / "dnas"
        cases_file = work / "cases.jsonl" if context.quick else kept_in_repository("dnas")
        stored = ResumableCases(cases_file, MEASURED)
        for log in LOGS if not context.quick else LOGS[-1:]:
            found[log.name] = []
            for seed in seeds:
                measure = partial(_case, context, log, seed, training_seeds, work)
                found[log.name].append(stored.get(f"{log.name}, seed {seed}", measure))
    for name, outcomes in found.items():
        for outcome in outcomes:
            means = {key: statistics.fmean(values) for key, values in outcome["ne"].items()}
            cases.append(
                (name, str(outcome["seed"]), f"{means['default']:.5f}", *(f"{means[each]:.5f}" for each in METHODS),
                 str(outcome["trials"]["random"]), f"{outcome['trainings']:.1f}")
            )  # fmt: skip
        for other in won:
            gains = tuple(
                statistics.fmean(
                    theirs - ours for theirs, ours in zip(each["ne"][other], each["ne"]["supernet"], strict=True)
                )
                for each in outcomes
            )
            low, high = interval(gains)
            won[other].append(low > 0)
            figures.append(
                Figure(
                    f"{name}.vs_{other}",
                    "NE",
                    gains,
                    f"NE of {other} less ours; 95 % {low:+.5f} to {high:+.5f}",
                    "mean",
                )
            )
        figures.append(
            Figure(f"{name}.search", "trainings", tuple(each["trainings"] for each in outcomes), "the whole search")
        )
        shares = tuple(each["flops"] / each["own_flops"] for each in outcomes)
        figures.append(Figure(f"{name}.flops", "x", shares, "of the hand-made config's"))
        figures.append(Figure(f"{name}.flops_most", "x", (max(shares),), "of the hand-made config's, the most of any"))
    figures += [
        Figure(f"logs_better_than_{other}", "logs", (float(sum(each)),), "logs whose interval is above 0")
        for other, each in won.items()
    ]
    figures += _planted_figures(found.get("planted", []))
    notes = (
        f"searches with seeds {', '.join(map(str, seeds))}; the best of each trained with seeds "
        f"{', '.join(map(str, training_seeds))}, which no search has seen; a sample is a search",
        "intervals are Student's t over searches; the limits are FLOPs and table bytes of the hand-made config, on the "
        "planted log half of its bytes",
        "random, TPE and evolution begin no trial after the processor seconds of the super-net's search; one thread",
        "vectors of 16 numbers in Frappe's config, 12 in the example: widths are a quarter, a half and all of them",
        own_proposals([outcome["trials"] for outcomes in found.values() for outcome in outcomes]),
        stored.commits,
    )
    return Result(tuple(figures), 0, len(seeds), notes, {}, tuple(cases))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % interval of a mean, by Student's t; infinite for one value."""
    if len(values) < 2:
        return -math.inf, math.inf
    half = _T_95[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - half, mean + half


def own_proposals(trials: Sequence[Mapping[str, int]]) -> str:
    """Returns in words how many trials were proposed by the methods themselves, after those that begin at random.

    Args:
        trials: of each search, method -> trials.
    """
    shares: list[str] = []
    for method, first in (("tpe", RANDOM_TRIALS), ("evolution", POPULATION)):
        own = [max(0, each[method] - first) for each in trials]
        shares.append(f"{sum(own)} of {sum(each[method] for each in trials)} trials of {method}")
    return f"proposed by the method itself, not at random to begin with: {', '.join(shares)}"


def _fixed(experiment: Experiment, quick: bool) -> Experiment:
    """Returns the experiment on one thread, so that all methods get the same machine."""
    changes: dict[str, Any] = {"threads": 1, "log_every": 1000}
    if quick:
        changes |= {"epochs": 1, "batch_size": 256}
    training = experiment.training.model_copy(update=changes)
    return experiment.model_copy(update={"training": training})


def _case(context: Context, log: SearchedLog, seed: int, training_seeds: Sequence[int], work: Path) -> dict[str, Any]:
    """Returns what a seed of searches gives on a log; unfinished searches go on in ``work``."""
    experiment = planted(work / "log", 3000) if context.quick else log.experiment(context)
    experiment = _fixed(experiment, context.quick)
    kept = work / f"{MEASURED}-{log.name}-{seed}".replace(" ", "-")
    dataset = prepare(experiment, folder=kept / "data")
    config = (
        parse_config(ArchitectureSearchConfig, _QUICK) if context.quick else log.config(_costs(experiment, dataset))
    )
    training = experiment.training.model_copy(update={"seed": seed})
    experiment = experiment.model_copy(update={"training": training})
    configs: dict[str, Experiment] = {"default": experiment}
    trials: dict[str, int] = {}
    spent: dict[str, dict[str, float]] = {}
    first: FoundArchitectures | None = None
    for method in METHODS:
        budget = None if first is None else first.search.cpu_seconds
        searched = search_architecture(
            experiment, kept / method, config=config, method=method, cpu_seconds=budget, seed=seed,
            prepared=kept / "data",
        )  # fmt: skip
        assert searched.finished, searched.signal
        first = first or searched.found
        trials[method] = len(searched.found.trials) - 1
        spent[method] = asdict(searched.found.search)
        configs[method] = load_experiment(searched.folder / BEST_FILE)
        context.say(
            f"{log.name}, seed {seed}: {method} trained {trials[method]} in {spent[method]['cpu_seconds']:.0f} "
            f"processor seconds, {spent[method]['seconds']:.0f} s"
        )
    assert first is not None
    assert first.best is not None
    ne = {name: [_test_ne(each, kept, name, number) for number in training_seeds] for name, each in configs.items()}
    values = chosen(first.decisions, first.best.choices)
    return {
        "seed": seed,
        "ne": ne,
        "trials": trials,
        "spent": spent,
        "trainings": first.trainings,
        "flops": first.best.costs["flops"],
        "own_flops": first.trials[0].costs["flops"],
        "values": values,
    }


def _costs(experiment: Experiment, dataset: Dataset) -> dict[str, float]:
    """Returns FLOPs and table bytes of a config as it is."""
    default = ArchitectureSearchConfig()
    return {**WholeSpace(default.space, default.tables, experiment, dataset.schema).own_costs()}


def _test_ne(experiment: Experiment, kept: Path, name: str, seed: int) -> float:
    training = experiment.training.model_copy(update={"seed": seed})
    experiment = experiment.model_copy(update={"training": training})
    outcome = train(experiment, run_folder=kept / "runs" / f"{name}-{seed}", prepared=_prepared(experiment, kept))
    assert outcome.results is not None, outcome.signal
    return monitored(outcome.results["figures"]["test"], "ne", experiment.tasks())


def _prepared(experiment: Experiment, kept: Path) -> Path:
    encoders = json.dumps([each.model_dump(mode="json") for each in experiment.features], sort_keys=True)
    folder = kept / "encoded"
    folder.mkdir(parents=True, exist_ok=True)
    known = folder / "index.json"
    index: list[str] = json.loads(known.read_text(encoding="utf-8")) if known.is_file() else []
    if encoders not in index:
        index.append(encoders)
        write_json(known, index)
    return folder / str(index.index(encoders))


def layers_of_products(layers: Sequence[str]) -> int:
    """Returns how many layers multiply numbers of two columns.

    A cross layer, Σ_f x_f x_fᵀ over the fields, multiplies numbers of one field with each other: of two columns only
    where a layer before it has mixed the fields by weights.

    Args:
        layers: the block of each layer, in order.
    """
    found, is_mixed = 0, False
    for block in layers:
        found += block in _PRODUCTS or (block == "cross" and is_mixed)
        is_mixed = is_mixed or block in _MIXING
    return found


def _planted_figures(outcomes: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Returns whether products of pairs were found, and how much narrower the vectors of noise are."""
    if not outcomes:
        return []
    found: list[float] = []
    narrower: list[float] = []
    for outcome in outcomes:
        values = outcome["values"]
        layers = [str(values[name]) for name in sorted(values) if name.startswith("layer.")]
        # Products beside the layers are of pairs of columns: they do not raise the order of one layer of products.
        found.append(float(max(layers_of_products(layers), values[PAIRS]) == 1))
        signal, noise = (statistics.fmean(values[f"table.{name}.dim"] for name in names) for names in (SIGNAL, NOISE))
        narrower.append(signal / noise)
    return [
        Figure("planted.order", "", tuple(found), "1 if products of pairs, and none of products, were found", "mean"),
        Figure("planted.noise", "x", tuple(narrower), "mean width of the signals' vectors over that of noise", "mean"),
    ]


DNAS = Benchmark(
    name="dnas",
    claim="The super-net finds models of lower NE than the hand-made config at no more FLOPs, and than random search "
    "and TPE at equal compute",
    targets={
        "logs_better_than_default": Target(3),
        "logs_better_than_random": Target(3),
        "logs_better_than_tpe": Target(3),
        "planted.order": Target(1),
        "planted.noise": Target(1.5),
        **{f"{log.name}.flops_most": Target(1.0 + 1e-9, "at most") for log in LOGS},
    },
    depends_on=(
        "bench/quality/dnas.py", "bench/quality/dnas_logs.py", "examples/frappe.yaml", "examples/movielens.yaml",
        "examples/census.yaml",
    ),
    run=run,
)  # fmt: skip
