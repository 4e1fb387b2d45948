"""Longer checks of dense optimizers and planners, for the tests of those who write them."""

from __future__ import annotations

import torch
from torch import nn

from ziggurat.contracts import optimizers, planners
from ziggurat.contracts.optimizers import small_parameters, take_step
from ziggurat.contracts.suites import as_imported
from ziggurat.core.errors import ConfigError, NoFeasiblePlan
from ziggurat.core.outside.failures import called
from ziggurat.core.plan import Plan
from ziggurat.optim.dense_optimizer import DenseOptimizerSettings
from ziggurat.planning.contract import PlannerSettings
from ziggurat.planning.problem import Problem

_STEPS = 6


def check_dense_optimizer(config: DenseOptimizerSettings) -> torch.optim.Optimizer:
    """Makes a dense optimizer and checks all that its contract promises; for a test of one's own optimizer.

    These are the checks: ``make`` returns an optimizer of the parameters that it gets, with an ``lr`` in each group;
    steps change the parameters and leave them finite; equal gradients give equal bits; an ``lr`` of zero changes
    nothing, as the schedule multiplies it; an optimizer that is saved halfway and restored goes on to the same bits.

    Args:
        config: the config of the optimizer, such as ``MyOptimizer.Config(lr=0.01)``.

    Returns:
        The optimizer, after a few steps.

    Raises:
        ConfigError: the optimizer breaks its contract; the message says where.
    """
    config = as_imported(config)
    optimizers.check_dense_optimizer(config)
    title = config.title
    before = small_parameters()
    parameters, optimizer = _trained(config, _STEPS)
    if any(torch.equal(parameter, before[name]) for name, parameter in parameters.items()):
        raise ConfigError(
            f"{title}: {_STEPS} steps left a parameter as it was", "update every parameter that has a gradient"
        )
    _compare(title, "two trainings with the same gradients differ", parameters, _trained(config, _STEPS)[0])
    still = small_parameters()
    frozen = config.build(still)
    for group in frozen.param_groups:
        group["lr"] = 0.0
    take_step(title, frozen, still, 0)
    _compare(title, "a step with lr = 0 changed parameters", still, before)
    half, first = _trained(config, _STEPS // 2)
    resumed = config.build(half)
    state = _as_saved(title, first)
    called(title, "load_state_dict", lambda: resumed.load_state_dict(state))
    for number in range(_STEPS // 2, _STEPS):
        take_step(title, resumed, half, number)
    _compare(title, "an optimizer that was saved halfway and restored goes on differently", half, parameters)
    return optimizer


def check_planner(config: PlannerSettings, problem: Problem | None = None) -> Plan:
    """Makes plans and checks all that a planner's contract promises; for a test of one's own planner.

    These are the checks: ``plan`` returns a possible placement for every table, on one device and on four; it keeps to
    constraints; the same problem gives the same plan.

    Args:
        config: the config of the planner, such as ``MyPlanner.Config()``.
        problem: what to plan in addition.

    Returns:
        The plan for ``problem``, or for four devices.

    Raises:
        ConfigError: the planner breaks its contract; the message says where.
        NoFeasiblePlan: it finds no plan although memory is ample.
    """
    config = as_imported(config)
    planners.check_planner(config)
    planner = config.build_checked()
    found: list[Plan] = []
    for each in (planners.small_problem(1), planners.small_problem(4), *([problem] if problem is not None else [])):
        try:
            plan, again = planner.plan(each), config.build_checked().plan(each)
        except NoFeasiblePlan as error:
            raise NoFeasiblePlan(f"{config.title}: {error.problem}", error.hint) from None
        if plan != again:
            raise ConfigError(
                f"{config.title}: plan returned two different plans for the same problem",
                "let the plan depend on the problem and the config alone; seed random numbers",
            )
        if Plan.from_json(plan.to_json()) != plan:
            raise ConfigError(
                f"{config.title}: the plan changes when it is saved", "use tuples of whole numbers for ranks"
            )
        found.append(plan)
    return found[-1]


def _trained(config: DenseOptimizerSettings, steps: int) -> tuple[dict[str, nn.Parameter], torch.optim.Optimizer]:
    parameters = small_parameters()
    optimizer = config.build(parameters)
    for number in range(steps):
        take_step(config.title, optimizer, parameters, number)
    return parameters, optimizer


def _compare(title: str, fault: str, ours: dict[str, nn.Parameter], expected: dict[str, nn.Parameter]) -> None:
    differing = [name for name, parameter in ours.items() if not torch.equal(parameter, expected[name])]
    if differing:
        raise ConfigError(
            f"{title}: {fault} ({', '.join(differing)})",
            "let a step depend on the gradients, on self.state and on self.param_groups alone, times lr",
        )


def _as_saved(title: str, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """Returns the optimizer's state as a checkpoint returns it: every number as a tensor."""
    saved = optimizer.state_dict()
    state: dict[int, dict[str, torch.Tensor]] = {}
    for number, values in saved["state"].items():
        for name, value in values.items():
            if value is None:
                continue
            kept = called(
                title, f"saving the state {name!r}", lambda value=value: torch.as_tensor(value).clone(),
                hint="keep tensors and numbers in self.state[parameter], no lists or dicts",
            )  # fmt: skip
            state.setdefault(number, {})[name] = kept
    return {**saved, "state": state}
