"""An agent as named arrays and back: its networks, optimizers, counters, running statistics and replay buffer.

stable-baselines3 saves agents with cloudpickle, which runs whatever a file says. Arrays cannot: they are stored as
safetensors, and are put into an agent that was made of the config.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize, unwrap_vec_normalize
from torch import Tensor

from ziggurat.core.untrusted import Damage

Arrays = dict[str, npt.NDArray[Any]]

_COUNTERS = ("num_timesteps", "_episode_num", "_n_updates", "_n_calls")
_INTEGER = "#int"
"""Ends the names of values that are Python integers in an optimizer's state."""
_SCALARS = "statistics/"


def agent_arrays(agent: BaseAlgorithm) -> Arrays:
    """Returns everything that the agent has learned, with the optimizers' states, as copies."""
    found: Arrays = {}
    for name, state in agent.get_parameters().items():
        if "optimizer" in name:
            for number, values in cast("dict[int, dict[str, Any]]", state["state"]).items():
                for key, value in values.items():
                    if isinstance(value, int):
                        found[f"{name}/{number}/{key}{_INTEGER}"] = np.array(value, np.int64)
                    elif value is not None:
                        found[f"{name}/{number}/{key}"] = _array(value)
        else:
            found |= {f"{name}/{key}": _array(value) for key, value in state.items()}
    for name, tensor in _loose_tensors(agent).items():
        found[f"tensor/{name}"] = _array(tensor)
    for name in _COUNTERS:
        if hasattr(agent, name):
            found[f"counter/{name}"] = np.array(getattr(agent, name), np.int64)
    statistics = _statistics(agent)
    if statistics is not None:
        for name, each in _running(statistics).items():
            for part in ("mean", "var", "count"):
                found[f"{_SCALARS}{name}/{part}"] = np.asarray(getattr(each, part), np.float64).copy()
    return found


def restore_agent(agent: BaseAlgorithm, arrays: Mapping[str, npt.NDArray[Any]], where: Path, damage: Damage) -> None:
    """Puts arrays of :func:`agent_arrays` into an agent made of the same config.

    Raises:
        ZigguratError: of class ``damage.error``: an array is missing, of another shape or type, or unknown.
    """
    expected = agent_arrays(agent)
    optimizers = [name for name in agent.get_parameters() if "optimizer" in name]
    fixed = {name for name in expected if name.partition("/")[0] not in optimizers}
    given = {name for name in arrays if name.partition("/")[0] not in optimizers}
    if fixed != given:
        name = min(fixed ^ given)
        fault = f"has no array {name!r}" if name in fixed else f"has the unknown array {name[:80]!r}"
        raise damage.of(where, fault)
    for name in fixed:
        if arrays[name].shape != expected[name].shape or arrays[name].dtype != expected[name].dtype:
            raise damage.of(
                where,
                f"array {name!r} is {arrays[name].dtype} of shape {arrays[name].shape}, expected "
                f"{expected[name].dtype} of shape {expected[name].shape}",
            )
    parameters: dict[str, Any] = {}
    for name, state in agent.get_parameters().items():
        mine = {key.removeprefix(f"{name}/"): value for key, value in arrays.items() if key.startswith(f"{name}/")}
        if name in optimizers:
            parameters[name] = {**state, "state": _optimizer_state(agent, name, mine, where, damage)}
        else:
            parameters[name] = {key: torch.from_numpy(np.array(value)) for key, value in mine.items()}
    agent.set_parameters(parameters, exact_match=True, device="cpu")
    for name, tensor in _loose_tensors(agent).items():
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(np.array(arrays[f"tensor/{name}"])))
    for name in _COUNTERS:
        if hasattr(agent, name):
            setattr(agent, name, int(arrays[f"counter/{name}"]))
    statistics = _statistics(agent)
    if statistics is not None:
        for name, each in _running(statistics).items():
            each.mean, each.var = (np.array(arrays[f"{_SCALARS}{name}/{part}"]) for part in ("mean", "var"))
            each.count = float(arrays[f"{_SCALARS}{name}/count"])


def _optimizer_state(
    agent: BaseAlgorithm, name: str, arrays: Mapping[str, npt.NDArray[Any]], where: Path, damage: Damage
) -> dict[int, dict[str, Any]]:
    """Returns the state of an optimizer, whose arrays are scalars or have the shape of their parameter.

    Before its first step it has none; after it each parameter has the same parts.
    """
    optimizer: Any = agent
    for step in name.split("."):
        optimizer = getattr(optimizer, step)
    shapes = [tuple(each.shape) for group in optimizer.param_groups for each in group["params"]]
    found: dict[int, dict[str, Any]] = {}
    for key, value in arrays.items():
        number, _, part = key.partition("/")
        if not number.isdigit() or int(number) >= len(shapes) or value.shape not in ((), shapes[int(number)]):
            raise damage.of(where, f"array {name}/{key[:60]} of shape {value.shape} belongs to no parameter")
        is_integer = part.endswith(_INTEGER)
        state = found.setdefault(int(number), {})
        state[part.removesuffix(_INTEGER)] = int(value) if is_integer else torch.from_numpy(np.array(value))
    parts = set[str]().union(*found.values())
    for number in range(len(shapes)) if found else ():
        if lacking := parts - found.get(number, {}).keys():
            raise damage.of(where, f"has no array {name}/{number}/{min(lacking)}, which its other parameters have")
    return found


def _loose_tensors(agent: BaseAlgorithm) -> dict[str, Tensor]:
    """Returns learned tensors that belong to no module, such as the logarithm of SAC's temperature."""
    _, names = agent._get_torch_save_params()  # pyright: ignore[reportPrivateUsage]
    return {name: getattr(agent, name) for name in names if getattr(agent, name) is not None}


def _statistics(agent: BaseAlgorithm) -> VecNormalize | None:
    env = agent.get_env()
    return None if env is None else unwrap_vec_normalize(env)


def _running(statistics: VecNormalize) -> dict[str, RunningMeanStd]:
    assert isinstance(statistics.obs_rms, RunningMeanStd)
    return {"observations": statistics.obs_rms, "returns": statistics.ret_rms}


_KEPT = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def replay_arrays(agent: BaseAlgorithm) -> Arrays:
    """Returns the transitions that an off-policy agent has kept, and where the next one goes; empty for others."""
    if not isinstance(agent, OffPolicyAlgorithm) or agent.replay_buffer is None:
        return {}
    buffer = agent.replay_buffer
    count = buffer.buffer_size if buffer.full else buffer.pos
    found: Arrays = {f"replay/{name}": np.ascontiguousarray(getattr(buffer, name)[:count]) for name in _KEPT}
    return {**found, "replay/place": np.array([buffer.pos, int(buffer.full)], np.int64)}


def restore_replay(agent: BaseAlgorithm, arrays: Mapping[str, npt.NDArray[Any]], where: Path, damage: Damage) -> None:
    """Puts the arrays of :func:`replay_arrays` back.

    Raises:
        ZigguratError: of class ``damage.error``: they do not fit the agent's buffer.
    """
    if not isinstance(agent, OffPolicyAlgorithm) or agent.replay_buffer is None:
        return
    buffer: ReplayBuffer = agent.replay_buffer
    place = arrays.get("replay/place")
    if place is None or place.shape != (2,) or place.dtype != np.int64 or not 0 <= place[0] <= buffer.buffer_size:
        raise damage.of(where, "says not where the next transition goes")
    full = bool(place[1])
    count = buffer.buffer_size if full else int(place[0])
    for name in _KEPT:
        target, value = getattr(buffer, name), arrays.get(f"replay/{name}")
        if value is None or value.dtype != target.dtype or value.shape != (count, *target.shape[1:]):
            raise damage.of(where, f"array 'replay/{name}' does not fit a buffer of {buffer.buffer_size} transitions")
        target[:count] = value
    buffer.pos, buffer.full = int(place[0]), full


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    return tensor.detach().cpu().numpy().copy()
