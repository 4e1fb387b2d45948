"""Measures rows in tiers on an emulated cluster whose hosts are ten times as fast inside as between each other.

Four hosts of two ranks look up histories of 20 to 200 ids, drawn by Zipf's law or those of Amazon's logs (``--data``),
in four ways: by FlexShard's plan; split by rows and de-duplicated; by RecShard's plan; and by TorchRec's
EmbeddingCollection, split by rows, which sends each look-up, the baseline of the paper. The ranks share the cores of
the machine, so seconds are those of the links where these are slow enough; bytes are counted by the kernel. The bytes
that the cost model predicts are compared with those that the look-up counts, at two, four and eight ranks.

TorchRec de-duplicates too (``EmbeddingCollectionSharder(use_index_dedup=True)``), but only on GPUs: its operator
``fbgemm::jagged_unique_indices`` has no kernel for the CPU in TorchRec 1.8. So it does not take part; ``rows`` is what
ziggurat makes of the same idea.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.lab.cluster import Shape, unavailable
from bench.lab.histories import LONGEST, SHORTEST, Histories
from bench.lab.launch import measured_in_cluster
from bench.lab.tier_worker import TORCHREC
from ziggurat.core.errors import DataError
from ziggurat.core.plan import Placement, Plan
from ziggurat.core.statistics import DatasetStatistics, TableStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning.contract import PlannerSettings
from ziggurat.planning.flexshard import FlexShard
from ziggurat.planning.flexshard.growth import growth
from ziggurat.planning.plan_estimate import PlanEstimate, predict
from ziggurat.planning.planner import planned_by
from ziggurat.planning.problem import Problem
from ziggurat.planning.recshard import RecShard
from ziggurat.training.placement.tier_watch import sent_bytes

RATE, LOCAL_RATE = "50mbit", "500mbit"
BETWEEN, WITHIN = 6.25e6, 6.25e7
"""The same in bytes a second."""
PLACES = {8: (4, 2), 4: (2, 2), 2: (2, 1)}
"""Ranks -> hosts, and ranks of each."""
EXPONENTS = (0.8, 1.0, 1.05, 1.2)
LOGS = {"beauty": "Beauty", "toys": "Toys_and_Games"}
"""Case -> the log of ``--data`` whose histories it has."""
ROWS, BATCH, DIM = 10_000, 256, 32
"""Rows of the drawn table, examples of a rank and step, floats of a row."""
FLEX, SPLIT, RECSHARD = "flexshard", "rows", "recshard"
RECSHARD_ROUNDS = 2
"""Rounds in which RecShard's plan is measured: its steps take many seconds."""
PURPOSES = ("copies", "host_rows", "split_rows")


def _problem(histories: Histories, ranks: int, batch: int) -> Problem:
    """Returns the problem of one table of histories; devices have memory for any plan."""
    hosts, devices = PLACES[ranks]
    optimizer = {"name": "rowwise_adagrad", "lr": 0.01, "eps": 1e-8}
    positions = {"history": LONGEST}
    table = TableSpec("item", histories.rows, DIM, ("history",), "sum", optimizer, 0.01, positions=positions)
    examples = round(int(histories.counts.sum()) / histories.mean)
    counted = DatasetStatistics(
        rows={"train": examples},
        label_rates={},
        tables={"item": TableStatistics("item", histories.rows, histories.counts)},
    )
    topology = Topology(hosts, devices, "lab", "cpu", 10**12, 1e10, WITHIN, BETWEEN)
    return Problem((table,), topology, counted, batch)


def _planned(problem: Problem, planner: PlannerSettings) -> Plan:
    return planned_by(problem, planner.build()).plan


def _split(problem: Problem) -> Plan:
    """Returns the plan of a table without copies, whose look-ups are de-duplicated."""
    ranks = tuple(range(problem.topology.world_size))
    placement = Placement("row_tiers", ranks, copied_rows=0, host_rows=0)
    return Plan(len(ranks), {"item": placement}, problem.topology.devices)


def _case(name: str, spec: Mapping[str, Any], ranks: int, batch: int, *, ours: bool = False) -> dict[str, Any]:
    problem = _problem(Histories(spec), ranks, batch)
    plans = {FLEX: _planned(problem, FlexShard.Config()).to_json(), SPLIT: _split(problem).to_json()}
    if not ours:
        plans[RECSHARD] = _planned(problem, RecShard.Config(time_limit_s=0)).to_json()
    others: dict[str, Any] = {} if ours else {TORCHREC: None}
    return {"name": name, "histories": dict(spec), "batch": batch, "dim": DIM, "plans": {**plans, **others}}


def _measured(context: Context, cases: Sequence[Mapping[str, Any]], ranks: int, rounds: Mapping[str, Any]) -> Any:
    """Returns case -> the measurements of each way and round, and the largest peak of each way."""
    hosts, devices = PLACES[ranks]
    shape = Shape(hosts, RATE, LOCAL_RATE)
    spec = {"cases": list(cases), **rounds}
    return measured_in_cluster(context, shape, devices, "bench.lab.tier_worker", spec)


def _figures(name: str, found: Mapping[str, Any]) -> list[Figure]:
    """Returns the figures of one case: those of each way, then FlexShard's beside the others'."""
    rounds: Mapping[str, Sequence[Mapping[str, float]]] = found["rounds"]
    figures: list[Figure] = []
    for way, each in rounds.items():
        for key, unit, scale in (
            ("inter", "MB", 1e-6), ("intra", "MB", 1e-6), ("communication", "ms", 1e3), ("step", "ms", 1e3)
        ):  # fmt: skip
            figures.append(Figure(f"{name} {way}.{key}", unit, tuple(scale * one[key] for one in each)))
        figures.append(Figure(f"{name} {way}.peak", "MB", (found["peaks"][way] / 1e6,)))
        if way in (FLEX, SPLIT):
            figures += _by_purpose(f"{name} {way}", rounds[way])
    for other in (TORCHREC, SPLIT, RECSHARD):
        pairs = list(zip(rounds[FLEX], rounds[other], strict=other != RECSHARD))
        fewer = tuple(100 * (1 - mine["inter"] / theirs["inter"]) for mine, theirs in pairs)
        figures.append(Figure(f"{name} vs_{other}.fewer", "%", fewer))
        for key, short in (("communication", "faster"), ("step", "step_faster")):
            ratios = tuple(theirs[key] / mine[key] for mine, theirs in pairs)
            figures.append(Figure(f"{name} vs_{other}.{short}", "x", ratios))
        peak = found["peaks"][FLEX] / found["peaks"][other]
        figures.append(Figure(f"{name} vs_{other}.memory", "x", (peak,)))
    return figures


def _by_purpose(name: str, rounds: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Returns the bytes that the look-up counts, by purpose and link; those of which there are none are left out."""
    found: list[Figure] = []
    for link in ("in_host", "between_hosts"):
        for purpose in PURPOSES:
            counted = tuple(each["traffic"].get(f"{purpose}_bytes_{link}", 0.0) / 1e6 for each in rounds)
            if any(counted):
                found.append(Figure(f"{name} {link}.{purpose}", "MB", counted))
    return found


def _predicted(estimate: PlanEstimate) -> dict[str, float]:
    """Returns the bytes that all ranks send in a step, by purpose and link, as the look-up counts them."""
    tiers = estimate.tiers[0].tiers
    return {name: estimate.topology.world_size * count for name, count in sent_bytes(DIM, *tiers).items()}


def _errors(case: Mapping[str, Any], ranks: int, found: Mapping[str, Any]) -> list[Figure]:
    """Returns FlexShard's bytes by purpose and link as counted, and by how much the prediction of the sum is off."""
    problem = _problem(Histories(case["histories"]), ranks, case["batch"])
    predicted = _predicted(predict(problem, Plan.from_json(case["plans"][FLEX])))
    rounds = found["rounds"][FLEX]
    figures = _by_purpose(f"{ranks}_ranks", rounds)
    for link in ("in_host", "between_hosts"):
        expected = sum(predicted.get(f"{purpose}_bytes_{link}", 0.0) for purpose in PURPOSES)
        counted = [sum(each["traffic"].get(f"{purpose}_bytes_{link}", 0.0) for purpose in PURPOSES) for each in rounds]
        if expected:
            off = tuple(100 * abs(each / expected - 1) for each in counted)
            figures.append(Figure(f"{ranks}_ranks {link}.predicted_off", "%", off))
    return figures


def _grown(spec: Mapping[str, Any], batch: int) -> list[Figure]:
    """Returns the bytes between hosts and the seconds of an exchange on 2 to 64 ranks, by the cost model."""
    problem = _problem(Histories(spec), 8, batch)
    figures: list[Figure] = []
    for each in growth(problem, problem.tables[0], (1, 2, 4, 8, 16, 32), FlexShard.Config()):
        name, mine = f"{each.ranks}_ranks_modelled", each.in_tiers
        for way, other in ((SPLIT, each.split), (TORCHREC, each.every_look_up)):
            if other.inter_bytes:
                fewer = 100 * (1 - mine.inter_bytes / other.inter_bytes)
                figures.append(Figure(f"{name} vs_{way}.fewer", "%", (fewer,)))
            figures.append(Figure(f"{name} vs_{way}.faster", "x", (other.exchange_seconds / mine.exchange_seconds,)))
    return figures


def _without_copies(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of the cases in which FlexShard's plan is the one that splits all rows."""
    pairs = [
        (case["name"], *(Plan.from_json(case["plans"][way]).placements for way in (FLEX, SPLIT))) for case in cases
    ]
    return [name for name, ours, split in pairs if ours == split]


def _logs(data: Path | None) -> dict[str, dict[str, Any]]:
    """Returns the logs of users in the folder of real data."""
    if data is None:
        return {}
    files = {case: data / "amazon_sequences" / f"{log}.txt" for case, log in LOGS.items()}
    missing = [str(path) for path in files.values() if not path.is_file()]
    if missing:
        raise DataError(f"{', '.join(missing)}: missing", "give --data a folder with amazon_sequences, or leave it out")
    return {case: {"file": str(path)} for case, path in files.items()}


def run(context: Context) -> Result:
    """Measures all ways on drawn and logged histories, then FlexShard alone on fewer ranks."""
    ranks, batch = (2, 8) if context.quick else (8, BATCH)
    rows = 500 if context.quick else ROWS
    exponents = (1.05,) if context.quick else EXPONENTS
    rounds = {"warmups": 0 if context.quick else 1, "rounds": 1 if context.quick else 5, "steps": 1}
    slow = {"fewer_rounds": {RECSHARD: RECSHARD_ROUNDS}}
    specs: dict[str, dict[str, Any]] = {f"zipf_{each:g}": {"zipf": each, "rows": rows} for each in exponents}
    specs |= {} if context.quick else _logs(context.data)
    cases = [_case(name, spec, ranks, batch) for name, spec in specs.items()]
    found = _measured(context, cases, ranks, rounds | slow)
    figures = [figure for name, each in found.items() for figure in _figures(name, each)]
    checked = "zipf_1.05"
    figures += _errors(next(case for case in cases if case["name"] == checked), ranks, found[checked])
    for fewer in () if context.quick else (4, 2):
        case = _case(checked, specs[checked], fewer, batch, ours=True)
        figures += _errors(case, fewer, _measured(context, [case], fewer, rounds | slow)[checked])
    figures += _grown(specs[checked], batch)
    hosts, devices = PLACES[ranks]
    notes = (
        f"{hosts} hosts x {devices} ranks on {len(os.sched_getaffinity(0))} cores, links of {RATE} between hosts, "
        f"{LOCAL_RATE} within; {batch} examples of a rank and step; drawn: {rows:,} rows, histories of {SHORTEST} to "
        f"{LONGEST} ids; rows of {DIM} floats, row-wise Adagrad",
        "bytes are per step and of all ranks, as the kernel counts them, headers included; communication: look-up, "
        "backward pass and update without a model; step: with attention over the histories; peak: weights, states, the "
        "order of rows and what torch allocates in a step without the model, of the fullest rank; memory: FlexShard's "
        "over theirs",
        f"recshard: {RECSHARD_ROUNDS} rounds, with all memory that it wants, as it has no plan for a single table in "
        "that of the others; rows: split by rows, de-duplicated; torchrec: EmbeddingCollection, row-wise, each look-up "
        "sent; in_host, between_hosts: payload that the look-up counts, of which predicted_off is too; modelled: by "
        "the cost model alone",
    )
    if same := _without_copies(cases):
        notes += (f"flexshard's plan is that of rows, and no difference between them is due to it: {', '.join(same)}",)
    return Result(tuple(figures), rounds["warmups"], rounds["rounds"], notes)


FLEXSHARD = Benchmark(
    name="flexshard",
    claim="Rows of sequence tables in tiers send at least 85 % fewer bytes between hosts than TorchRec's row-wise "
    "look-up and exchange 5.5 times as fast from Zipf 1.05 on, in no more memory, and are ahead of de-duplicated rows.",
    targets={
        **{f"zipf_{each:g} vs_{TORCHREC}.fewer": Target(85) for each in EXPONENTS if each >= 1.05},
        **{f"zipf_{each:g} vs_{TORCHREC}.faster": Target(5.5) for each in EXPONENTS if each >= 1.05},
        **{f"zipf_{each:g} vs_{TORCHREC}.memory": Target(1, "at most") for each in EXPONENTS},
        **{f"zipf_{each:g} vs_{SPLIT}.fewer": Target(0) for each in EXPONENTS},
        **{f"zipf_{each:g} vs_{SPLIT}.faster": Target(1) for each in EXPONENTS},
        **{f"{ranks}_ranks between_hosts.predicted_off": Target(5, "at most") for ranks in PLACES},
    },
    data_targets={
        **{f"{log} vs_{SPLIT}.fewer": Target(0) for log in LOGS},
        **{f"{log} vs_{SPLIT}.faster": Target(1) for log in LOGS},
        **{f"{log} vs_{TORCHREC}.memory": Target(1, "at most") for log in LOGS},
    },
    depends_on=(
        "bench/system/flexshard.py",
        "bench/lab/tier_worker.py",
        "src/ziggurat/embeddings/row_tiers",
        "src/ziggurat/planning/flexshard",
    ),
    run=run,
    missing=unavailable,
)
