"""Losses against their formulas and finite differences; shifts, scales and thresholds at the start; predictions."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from ziggurat.objectives.label_figures import LabelFigures
from ziggurat.objectives.losses import Huber, Log1p, Poisson, Quantile, Squared, Tweedie
from ziggurat.objectives.outputs import Outputs
from ziggurat.objectives.task import Task

ROWS = 7
LEVELS = (1.0, 2.0, 4.0, 5.0)
FIGURES = LabelFigures(
    mean=3.0,
    std=2.0,
    log_mean=1.2,
    log_std=0.5,
    quantiles=tuple(np.linspace(0.5, 9.5, 99).tolist()),
    levels=LEVELS,
    shares=(0.1, 0.2, 0.3, 0.4),
    trials=5.0,
)
BINARY, SOFT = Task("t"), Task("t", "soft")
SQUARED, HUBER, LOG1P = (Task("t", "regression", loss) for loss in (Squared(), Huber(delta=1.5), Log1p()))
POISSON, TWEEDIE = (Task("t", "regression", loss) for loss in (Poisson(), Tweedie(power=1.3)))
QUANTILE = Task("t", "regression", Quantile(levels=(0.2, 0.5, 0.9)))
ORDINAL = Task("t", "ordinal", levels=LEVELS)
TASKS = {
    "binary": BINARY,
    "soft": SOFT,
    "squared": SQUARED,
    "huber": HUBER,
    "log1p": LOG1P,
    "poisson": POISSON,
    "tweedie": TWEEDIE,
    "quantile": QUANTILE,
    "ordinal": ORDINAL,
}


def labels_of(task: Task) -> torch.Tensor:
    draw = np.random.default_rng(3)
    if task.kind == "binary":
        return torch.tensor(draw.integers(0, 2, ROWS), dtype=torch.float64)
    if task.kind == "soft":
        return torch.tensor(draw.random(ROWS))
    if task.kind == "ordinal":
        return torch.tensor(draw.choice(LEVELS, ROWS))
    return torch.tensor([0.0, *draw.gamma(1.0, 3.0, ROWS - 1)])


def started(task: Task, *, at_base_rate: bool = True) -> Outputs:
    figures = FIGURES if not task.is_probability else LabelFigures(0.2, 0.4, trials=5.0)
    outputs = Outputs([task], at_base_rate)
    assert outputs.start({"t": figures}) == []
    return outputs.double()


def formula(task: Task, raw_BK: np.ndarray, label_B: np.ndarray) -> np.ndarray:
    """The losses by their definitions, row by row, from the model's outputs."""
    found: list[float] = []
    for raw, y in zip(raw_BK, label_B, strict=True):
        x = float(raw[0])
        match task.loss:
            case None if task.is_probability:
                p = 1 / (1 + math.exp(-(x + math.log(0.2 / 0.8))))
                loss = -(y * math.log(p) + (1 - y) * math.log(1 - p))
            case None:
                above = np.cumsum(FIGURES.shares)[:-1]
                thresholds = np.log(above / (1 - above))
                reached = [1.0, *(1 / (1 + np.exp(thresholds - x))), 0.0]
                level = LEVELS.index(y)
                loss = -math.log(reached[level] - reached[level + 1])
            case Squared():
                loss = ((3 + 2 * x - y) / 2) ** 2 / 2
            case Huber(delta=delta):
                error = abs(3 + 2 * x - y)
                loss = (error**2 / 2 if error <= delta else delta * (error - delta / 2)) / (2 * min(2, delta))
            case Log1p():
                loss = ((1.2 + 0.5 * x - math.log1p(y)) / 0.5) ** 2 / 2
            case Poisson():
                loss = math.exp(x) - y / 3 * x
            case Tweedie(power=p):
                loss = -(y / 3) * math.exp((1 - p) * x) / (1 - p) + math.exp((2 - p) * x) / (2 - p)
            case Quantile(levels=levels):
                at = [FIGURES.quantile(level) + 2 * float(each) for level, each in zip(levels, raw, strict=True)]
                missed = [(y - each) / 2 for each in at]
                loss = np.mean([max(q * each, (q - 1) * each) for q, each in zip(levels, missed, strict=True)])
        found.append(float(loss))
    return np.array(found)


def outputs_of(task: Task) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(8).normal(size=(ROWS, task.outputs)))


@pytest.mark.parametrize("name", TASKS)
def test_a_loss_is_its_formula(name: str) -> None:
    task, outputs = TASKS[name], started(TASKS[name])
    raw, label = outputs_of(task), labels_of(task)
    loss_B = outputs.losses(outputs(raw), label.unsqueeze(1))[:, 0]
    expected = formula(task, raw.numpy(), label.numpy())
    np.testing.assert_allclose(loss_B.detach().numpy(), expected, rtol=2e-5)  # thresholds are float32 at the start


@pytest.mark.parametrize("name", TASKS)
def test_a_gradient_is_that_of_finite_differences(name: str) -> None:
    task, outputs = TASKS[name], started(TASKS[name])
    label = labels_of(task).unsqueeze(1)
    raw = outputs_of(task).requires_grad_()
    parameters = [each for each in outputs.parameters() if each.numel()]
    assert torch.autograd.gradcheck(lambda x, *_: outputs.losses(outputs(x), label), (raw, *parameters))


@pytest.mark.parametrize("name", TASKS)
def test_predictions_are_those_of_the_metrics(name: str) -> None:
    """Two implementations: the module's, which is exported, and the one of metrics and of files."""
    task, outputs = TASKS[name], started(TASKS[name]).float()
    columns = outputs(outputs_of(task).float()).detach()
    ours = task.predictions(columns.numpy())
    np.testing.assert_allclose(outputs.predictions(columns)[:, 0].numpy(), ours, rtol=1e-5)
    if task.kind == "ordinal":
        shares = np.stack(list(task.further(columns.numpy()).values()), axis=1)
        assert list(task.further(columns.numpy())) == ["1", "2", "4", "5"]
        np.testing.assert_allclose(shares.sum(axis=1), 1)
        np.testing.assert_allclose(shares @ np.array(LEVELS), ours, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("soft", 0.2), ("squared", 3.0), ("huber", 3.0), ("log1p", math.expm1(1.2)), ("poisson", 3.0), ("tweedie", 3.0)],
)
def test_an_output_of_0_predicts_the_mean_of_training(name: str, expected: float) -> None:
    outputs = started(TASKS[name])
    columns = outputs(torch.zeros(1, 1, dtype=torch.float64))
    assert float(outputs.predictions(columns)) == pytest.approx(expected, rel=1e-6)


def test_a_quantile_begins_at_the_quantile_and_levels_do_not_cross() -> None:
    outputs = started(QUANTILE).float()
    columns = outputs(torch.zeros(1, 3)).numpy()
    assert columns[0] == pytest.approx([FIGURES.quantile(level) for level in (0.2, 0.5, 0.9)])
    crossed = outputs(torch.tensor([[5.0, 0.0, -5.0]])).numpy()
    found = [float(each[0]) for each in QUANTILE.further(crossed).values()]
    assert found == sorted(found)
    assert QUANTILE.predictions(crossed)[0] == found[1]


def test_an_ordinal_label_begins_at_the_shares_of_its_levels() -> None:
    outputs = started(ORDINAL).float()
    shares = ORDINAL.further(outputs(torch.zeros(1, 1)).detach().numpy())
    assert [float(each[0]) for each in shares.values()] == pytest.approx(FIGURES.shares, abs=1e-4)


def test_thresholds_ascend_whatever_the_optimizer_does() -> None:
    outputs = started(ORDINAL)
    with torch.no_grad():
        for parameter in outputs.parameters():
            parameter.copy_(torch.randn_like(parameter) * 10)
    columns = outputs(torch.zeros(1, 1, dtype=torch.float64))[0].tolist()
    assert all(left >= right for left, right in pairwise(columns))


def test_extreme_outputs_have_finite_gradients() -> None:
    outputs = started(ORDINAL).float()
    raw = torch.tensor([[-200.0], [200.0], [-200.0], [200.0]], requires_grad=True)
    loss = outputs.losses(outputs(raw), torch.tensor([[1.0], [1.0], [5.0], [5.0]])).sum()
    loss.backward()
    assert math.isfinite(loss.item())
    assert bool(torch.isfinite(raw.grad).all()) if raw.grad is not None else False


def test_binary_labels_change_nothing_unless_asked() -> None:
    raw = torch.randn(4, 2)
    outputs = Outputs([Task("a"), Task("b")])
    assert outputs(raw) is raw
    assert not [*outputs.parameters(), *outputs.buffers()]
    shifted = Outputs([Task("a"), Task("b")], at_base_rate=True)
    assert shifted.start({"a": LabelFigures(0.01, 0.1)}) == ["b"]
    assert torch.sigmoid(shifted(torch.zeros(1, 2)))[0].tolist() == pytest.approx([0.01, 0.5])


def test_predictions_are_corrected_for_dropped_negatives_outside_training_alone() -> None:
    task = Task("click", negative_rate=0.1)
    outputs = Outputs([task])
    raw = torch.tensor([[-1.0], [0.0], [2.0]])
    assert torch.equal(outputs(raw), raw)
    outputs.eval()
    learnt = torch.sigmoid(raw)
    expected = learnt / (learnt + (1 - learnt) / 0.1)
    torch.testing.assert_close(torch.sigmoid(outputs(raw)), expected)


@pytest.mark.parametrize(("kept", "known"), [(0.1, 1.0), (0.5, 0.2)])
def test_with_dropped_negatives_the_first_prediction_is_the_rate_of_the_rows_trained_on(
    kept: float, known: float
) -> None:
    positives, negatives = 10.0, 990.0
    outputs = Outputs([Task("click", negative_rate=known * kept, known_rate=known)], at_base_rate=True)
    outputs.start({"click": LabelFigures(positives / (positives + negatives), 0.1)})
    untrained = torch.zeros(1, 1)
    in_training = torch.sigmoid(outputs(untrained)).item()
    assert in_training == pytest.approx(positives / (positives + negatives * kept), rel=1e-5)
    outputs.eval()
    whole_log = torch.sigmoid(outputs(untrained)).item()
    assert whole_log == pytest.approx(positives / (positives + negatives / known), rel=1e-5)


def test_rows_weigh_by_loss_weights_and_by_trials() -> None:
    tasks = [Task("click"), Task("ctr", "soft", weight=3.0)]
    outputs = Outputs(tasks)
    outputs.start({"ctr": LabelFigures(0.5, 0.1, trials=5.0)})
    columns, labels = torch.randn(4, 2), torch.rand(4, 2).round()
    counts = torch.tensor([[1.0, 0.0], [1.0, 5.0], [1.0, 10.0], [1.0, 1.0]])
    losses = outputs.losses(columns, labels)
    found = outputs.row_losses(columns, labels, counts)
    torch.testing.assert_close(found, (losses[:, 0] + 3 * losses[:, 1] * counts[:, 1] / 5) / 4)


def test_equal_weights_are_the_mean() -> None:
    outputs = Outputs([Task("a", weight=2.0), Task("b", weight=2.0)])
    columns, labels = torch.randn(5, 2), torch.rand(5, 2).round()
    assert torch.equal(outputs.row_losses(columns, labels), outputs.losses(columns, labels).mean(dim=1))
