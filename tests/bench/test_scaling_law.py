"""The scaling benchmark: the log that it generates, and the figures that it derives from sweeps."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from bench.plots import draw_laws
from bench.system import scaling_law
from bench.tables import stored_table
from ziggurat.data.synthetic.chunk import ChunkMaker
from ziggurat.models.model import ModelDims
from ziggurat.training.experiment import Experiment
from ziggurat.training.scaling.model_sizes import Size, grown_experiments
from ziggurat.training.scaling.result import RunResult, ScaleResult, SizeResult


def sweep(losses: list[list[float]]) -> ScaleResult:
    sizes = tuple(
        SizeResult(
            number,
            {"name": "wukong"},
            Size(1000 * 10**number, 1, 1),
            tuple(RunResult(seed, "", 1, 1, 1, 1.0, {"test": {"log_loss": loss}}) for seed, loss in enumerate(values)),
        )
        for number, values in enumerate(losses)
    )
    return ScaleResult("law", "test", "f00d", 2, sizes, {"model": {"name": "wukong"}})


def test_the_late_fall_is_that_of_the_last_tenfold_of_each_seed() -> None:
    result = sweep([[0.6, 0.7], [0.5, 0.6], [0.45, 0.6]])
    assert scaling_law._late_falls(result) == pytest.approx((10.0, 0.0))  # pyright: ignore[reportPrivateUsage]
    wider = sweep([[0.6], [0.5], [0.4]])
    between = ScaleResult(
        "law", "test", "f00d", 1, (*wider.sizes[:2], SizeResult(3, {}, Size(10**7, 1, 1), wider.sizes[2].runs)), {}
    )
    # A tenth of 10⁷ FLOPs is 10⁶, two thirds of the way from 10⁴ on a logarithmic scale.
    expected = 100 * (1 - 0.4 / np.interp(6, [3, 4, 7], [0.6, 0.5, 0.4]))
    assert scaling_law._late_falls(between) == pytest.approx((expected,))  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("rival", "ours", "ratio"),
    [
        ([0.6, 0.5, 0.45], [0.45, 0.4, 0.3], 100.0),  # our smallest size reaches the log-loss of their largest
        ([0.6, 0.5, 0.45], [0.6, 0.5, 0.45], 1.0),
        ([0.6, 0.45, 0.5], [0.5, 0.4, 0.3], 10**0.5),  # theirs is best at size 2; ours equals it half-way to size 2
        ([0.6, 0.3, 0.4], [0.6, 0.5, 0.45], 0.0),  # never reached
    ],
)
def test_a_rivals_compute_is_compared_where_it_is_best(rival: list[float], ours: list[float], ratio: float) -> None:
    found = scaling_law._compute_ratio(*(sweep([[loss] for loss in losses]) for losses in (rival, ours)))  # pyright: ignore[reportPrivateUsage]
    assert found == pytest.approx(ratio)


def test_the_log_needs_interactions_of_every_order() -> None:
    """Pairs and larger groups each explain a share of the variance of the logit; single ids explain hardly any."""
    whole = scaling_law.shape(10)
    assert {len(group) for group in whole.likenesses} == {4, 6}
    maker = ChunkMaker(whole)
    _, signals = maker._features(0, 5_000)  # pyright: ignore[reportPrivateUsage]
    logits = maker.planted.logits(signals)[0]
    shares: dict[str, float] = {}
    for name in ("first_order", "second_order", "high_order"):
        label = whole.labels[0].model_copy(update={name: 0.0})
        less = ChunkMaker(whole.model_copy(update={"labels": (label,)}))
        shares[name] = float(np.var(logits - less.planted.logits(signals)[0]) / np.var(logits))
    assert shares["first_order"] < 0.02
    assert min(shares["second_order"], shares["high_order"]) > 0.15


@pytest.mark.parametrize(("name", "span", "least"), [("wukong", 100, 5e3), ("dcn_v2", 65, 1e4), ("dlrm", 65, 1e4)])
def test_full_sweeps_span_orders_of_magnitude(name: str, span: float, least: float) -> None:
    extent = scaling_law.FULL
    values = scaling_law.experiment(scaling_law.ROOT / "log.parquet", scaling_law.MODELS[name], extent)
    experiment = Experiment.model_validate(values)
    models = [each.model for each in grown_experiments(experiment, extent.sizes[name])]
    if name == "wukong":
        whole = [Experiment.model_validate({**values, "model": size}) for size in scaling_law.WUKONG_SIZES]
        models = [each.model for each in whole]
    dims = ModelDims(0, scaling_law.COLUMNS, scaling_law.DIM)
    sizes = [model.build(dims).flops() for model in models]
    assert sizes == sorted(sizes)
    assert sizes[-1] > span * sizes[0]
    assert least < sizes[0] < 3e4


def test_the_docs_draw_every_size_and_keep_them_out_of_the_table(tmp_path: Path) -> None:
    points = [
        {"name": f"{model}@{10**k}", "samples": [drop / k + 0.001 * s for s in range(3)]}
        for model, drop in (("wukong", 0.5), ("dlrm", 0.4))
        for k in (3, 4, 5, 6)
    ]
    drawn: list[bytes] = []
    for path in (tmp_path / "one.svg", tmp_path / "two.svg"):
        draw_laws(path, points)
        drawn.append(path.read_bytes())
    assert drawn[0] == drawn[1]
    tree = ElementTree.fromstring(drawn[0].decode())
    uses = tree.findall(".//{http://www.w3.org/2000/svg}use")
    assert len(uses) >= 2 * 4 * (3 + 1)  # a mark per seed and one per mean

    judged = {
        "name": "span",
        "unit": "x",
        "median": 100.0,
        "low": 1,
        "high": 1,
        "target": "",
        "holds": None,
        "note": "",
    }
    table = stored_table({"layout": "law", "figures": [judged, *points]})
    assert "span" in table
    assert "@" not in table
