"""Tests of what the benchmarks of towers compute from their measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.lab.tower_modules import dcn_module, dlrm_module
from bench.quality import dmt_quality
from bench.quality.dmt_quality import Data, Measured, Variant
from bench.system import dmt
from ziggurat.core.config import parse_config
from ziggurat.training.experiment import Experiment


@pytest.mark.parametrize("compression", [2, 4, 8])
def test_modules_compress_by_what_is_asked_and_a_tower_has_three_outputs(compression: int) -> None:
    numbers = 24 * 16 / (4 * compression)
    module = dlrm_module(24, 16, 4, compression)
    assert module.flat * module.width == numbers
    assert module.flat >= 3
    assert dcn_module(24, 16, 4, compression).width == numbers


def test_every_way_trains_the_same_rows_by_the_planner_s_plan() -> None:
    cases = {each.name: each for each in dmt.cases("dlrm", dmt.MAIN, quick=False)}
    assert set(cases) == {"torchrec", "flat", "transform", "modules ÷2", "modules ÷8", "flat modules ÷8"}
    assert len({(each.batch_size, tuple(each.rows), each.dim) for each in cases.values()}) == 1
    assert all(each.parallel["shared_memory"] is False for each in cases.values())
    plan = cases["flat"].plan
    assert plan is not None
    assert plan == cases["torchrec"].plan
    assert plan["t8"] == ("data_parallel", tuple(range(8)))  # three rows
    assert plan["t2"][0] != "data_parallel"
    assert cases["flat modules ÷8"].towers == cases["modules ÷8"].towers
    assert cases["flat modules ÷8"].parallel == cases["flat"].parallel


def test_towers_are_compared_with_every_other_way_round_by_round() -> None:
    seconds = {
        "torchrec": (4.0, 8.0), "flat": (2.0, 6.0), "transform": (2.0, 3.0), "modules ÷2": (1.0, 2.0),
        "modules ÷8": (0.5, 1.0), "flat modules ÷8": (1.0, 3.0),
    }  # fmt: skip
    found = {
        way: [{"seconds": each, "inter": 2e6, "intra": 1e6, "loss": 0.5} for each in values]
        for way, values in seconds.items()
    }
    figures = {each.name: each.samples for each in dmt.figures_of("x", found, 10)}
    assert figures["x modules ÷8.vs_flat"] == (4.0, 6.0)
    assert figures["x modules ÷8.vs_torchrec"] == (8.0, 8.0)
    assert figures["x modules ÷8.placement"] == (2.0, 3.0)
    assert figures["x flat modules ÷8.smaller_model"] == (2.0, 2.0)
    assert figures["x flat.speed"] == (5.0, 10 / 6)
    assert figures["x flat.inter"] == (2.0, 2.0)


def _outcome(auc: float) -> dict[str, object]:
    return {"figures": {"test": {"auc": auc}}, "compression": 2.0, "best_step": 7, "steps": 9}


def _data() -> Data:
    return Data("planted", lambda seed: parse_config(Experiment, {}), lambda seed: (("a", "b"), ("c", "d")))


def test_a_model_that_is_worse_than_the_flat_one_is_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tp, strided = Variant("tp", 4, 2), Variant("strided", 4, 2)
    monkeypatch.setattr(dmt_quality, "variants", lambda few, quick: [tp, strided])
    right, wrong = [["a", "b"], ["c", "d"]], [["a", "c"], ["b", "d"]]
    measured = Measured(
        {"flat": _outcome(0.8), tp.name: _outcome(0.79), strided.name: _outcome(0.7)},
        {"tp 4": right, "strided 4": wrong},
        {"4": 1.25},
    )
    figures = {each.name: each.samples[0] for each in dmt_quality.figures_of(_data(), [measured], quick=False)}
    assert figures["planted tp 4.below_flat"] == pytest.approx(0.01)
    assert figures["planted tp 4.over_strided"] == pytest.approx(0.09)
    assert figures["planted tp 4.compression"] == 2.0
    assert figures["planted tp 4.load"] == 1.25
    assert (figures["planted tp 4.kept"], figures["planted strided 4.kept"]) == (1.0, 0.0)
    assert figures["planted tp 4.ari"] == 1.0
    assert figures["planted strided 4.ari"] < 0.1


def test_what_the_benchmark_reads_makes_its_result_old() -> None:
    read = {str(path) for path in dmt_quality.DMT_QUALITY.depends_on}
    for board in dmt_quality.BOARDS:
        assert {f"bench/quality/boards/{board}.yaml", f"examples/{board}.yaml"} <= read
        assert all((Path(dmt_quality.ROOT) / each).is_file() for each in read)
