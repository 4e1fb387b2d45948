"""Shampoo as a torch optimizer, for one process or distributed over ranks.

A step of a block of weights W with gradient G, in the order of Shi et al. 2023, algorithm 2:

1. ``coupled`` decay: G += wd·W
2. L_k ← β2·L_k + (1 − β2)·G_k·G_kᵀ for each dimension k, with G_k the gradient unfolded along k (β2 = 1: a sum). Blocks
   of several dimensions do this every s = ``statistics_frequency`` steps, with β2ˢ instead of β2.
3. Every ``precondition_frequency`` steps: E_k, the eigenvectors of L_k / (1 − β2ᵗ). In form roots:
   X_k = (L_k / (1 − β2ᵗ) + εI)^(−1/2d), for d dimensions.
4. Ḡ: the bias-corrected moving mean of G by β1
5. P = Ḡ rotated by all E_kᵀ, divided by the root of the second moments in that basis (updated with G in the same steps
   as L_k), and rotated back. In form roots: Ḡ times all X_k. P is scaled to the norm of the graft's step, block by
   block. Before ``start``, and in the ten steps after it in which the second moments in the eigenbasis warm up, P is
   the graft's step itself.
6. Other decays: P += wd·W
7. Momentum; W ← W − lr·P
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from ziggurat.core.errors import ConfigError
from ziggurat.optim.shampoo.arguments import ShampooArguments
from ziggurat.optim.shampoo.block_batches import BlockBatches
from ziggurat.optim.shampoo.loading import check, check_settings, load
from ziggurat.optim.shampoo.parameter import Parameter, check_finite, full_blocks, full_gradient_blocks
from ziggurat.optim.shampoo.placement import Exchange, RankGroups, owners
from ziggurat.optim.shampoo.settings import (
    MUTABLE_SETTINGS,
    NON_SETTINGS,
    GroupSettings,
    as_group,
    first_alike,
    parse_settings,
)


class Shampoo(torch.optim.Optimizer):
    """Distributed Shampoo; by default Adam in Shampoo's eigenbasis, with ``form="roots"`` Shampoo as published.

    The default is of the family of SOAP (Vyas et al. 2024): the moving mean is rotated into the eigenbasis of Shampoo's
    second moments, divided by the root of second moments there, clamped, rotated back, and scaled to the norm of the
    graft's step. No root of a matrix is computed. ``form="roots"`` multiplies the mean by inverse roots instead (Gupta
    et al. 2018).

    Gradients must be equal on all ranks, as under DDP, or shards of one tensor (DTensor: ``fully_shard``, on one mesh
    or two). Shards are gathered, so that blocks, and the training, do not depend on the number of ranks. Each rank
    holds only the state of its own blocks, as DTensors on the ranks that hold it, and all ranks get all updates in one
    exchange a step.

    On the CPU, with the same number of threads and the same gradients, training on any number of ranks equals training
    on a single rank bit for bit, unless updates are communicated in lower precision.

    Args:
        params: parameters, or (name, parameter) pairs, or groups of them. Groups may have their own settings.
        process_group: the ranks that train these parameters; default: all ranks.
        **settings: the settings of :class:`ShampooArguments <ziggurat.optim.shampoo.arguments.ShampooArguments>`.

    Raises:
        ConfigError: an unknown or invalid setting, or parameters that are not floating-point numbers.
        LostRank: ranks differ in parameters or settings.
    """

    def __init__(self, params: Any, process_group: dist.ProcessGroup | None = None, **settings: Any) -> None:
        defaults = as_group(parse_settings(settings))
        super().__init__(params, defaults)
        self._within = process_group
        self._configs = [
            parse_settings({key: each for key, each in group.items() if key not in NON_SETTINGS})
            for group in self.param_groups
        ]
        first = self._configs[0]
        for number, (config, group) in enumerate(zip(self._configs, self.param_groups, strict=True)):
            group.update(as_group(config), highest_lr=group.get("highest_lr", config.lr))
            for key in ("communicate", "group_size"):
                if getattr(config, key) != getattr(first, key):
                    raise ConfigError(
                        f"shampoo: {key} is {getattr(config, key)!r} in group {number} and {getattr(first, key)!r} in "
                        "group 0",
                        "give all groups the same value: their updates are sent together",
                    )
        self._settings, self._alike = [GroupSettings(config) for config in self._configs], first_alike(self._configs)
        self._ranks = RankGroups.of(first.group_size, process_group)
        self._worker = ThreadPoolExecutor(1, "roots") if any(each.late for each in self._configs) else None
        if self._worker is not None:
            weakref.finalize(self, self._worker.shutdown, wait=False)
        self._parameters = [
            Parameter.of(
                name,
                parameter,
                number,
                self._configs[number].max_preconditioner_dim,
                sum(size > 1 for size in parameter.shape) > 1 or self._configs[number].vectors,
            )
            for number, group in enumerate(self.param_groups)
            for name, parameter in _named_parameters(group, number)
        ]
        self._devices = {each.tensor.device.type for each in self._parameters}
        self._steps = torch.zeros(len(self._parameters), dtype=torch.float32)
        for place, each in enumerate(self._parameters):
            each.step = self._steps[place]
        description = {f"the settings of group {number}": str(each) for number, each in enumerate(self._configs)}
        description |= {f"the shape of {each.name!r}": str(tuple(each.size)) for each in self._parameters}
        description |= {f"the type of {each.name!r}": str(each.tensor.dtype) for each in self._parameters}
        description |= {f"parameter number {number}": repr(each.name) for number, each in enumerate(self._parameters)}
        self._ranks.check_settings_agree(description)
        self._batches = list[tuple[BlockBatches, list[list[_Item]]]]()
        self._place()

    def _place(self) -> None:
        """Assigns each block to a rank, and creates the state of this rank's blocks."""
        every = [(each, number) for each in self._parameters for number in range(len(each.blocks))]
        owned = owners([_block_kind(*item) for item in every], self._ranks.size)
        self._order = [
            [item for item, owner in zip(every, owned, strict=True) if owner == place]
            for place in range(self._ranks.size)
        ]
        groups: dict[tuple[Any, ...], dict[tuple[tuple[int, ...], bool], list[_Item]]] = {}
        for item in self._order[self._ranks.place]:
            parameter, number = item
            kinds = groups.setdefault((self._alike[parameter.group], parameter.dtype, parameter.like.device), {})
            kinds.setdefault(_block_kind(parameter, number), []).append(item)
        for (group, *_), kinds in groups.items():
            named = [([each.block_name(number) for each, number in items], *kind) for kind, items in kinds.items()]
            like = next(iter(kinds.values()))[0][0].like
            batches = BlockBatches(named, self._configs[group], like, self._worker)
            self._batches.append((batches, [*kinds.values()]))
            for batch, items in zip(batches.batches, kinds.values(), strict=True):
                for place, (parameter, number) in enumerate(items):
                    parameter.locations[number] = (batch, place)
        where = [batch for batches, _ in self._batches for batch in batches.batches]
        own = [parameter.locations[number] for parameter, number in self._order[self._ranks.place]]
        self._own = [(where.index(batch), place) for batch, place in own]
        self._exchange = None
        if self._ranks.size > 1:
            shapes = [[parameter.blocks[number].shape for parameter, number in items] for items in self._order]
            likes = [each.like for each in self._parameters]
            widest = max(likes, key=lambda each: each.dtype.itemsize)
            precision = self._configs[0].communicate
            self._exchange = Exchange(
                self._ranks, shapes, precision, [each.name for each in self._parameters], len(self._configs), widest
            )
        self._publish_state()

    def _publish_state(self) -> None:
        """Fills ``state`` with the state of all blocks; other ranks' blocks are DTensors without a local part."""
        meshes = dict[tuple[int, torch.device], Any]()
        states = dict[tuple[Any, ...], dict[str, Tensor]]()
        for owner, items in enumerate(self._order):
            for parameter, number in items:
                state = self.state[parameter.tensor]
                state["step"] = parameter.step
                if self._ranks.size == 1:
                    batch, place = parameter.locations[number]
                    state.update({f"{number}/{name}": each for name, each in batch.state(place).items()})
                    continue
                like = parameter.like
                if (owner, like.device) not in meshes:
                    meshes[owner, like.device] = self._ranks.mesh(owner, like.device)
                held = parameter.locations.get(number)
                group, kind = parameter.group, _block_kind(parameter, number)
                if (group, kind) not in states:
                    alone = BlockBatches([([""], *kind)], self._configs[group], like.to("meta"))
                    states[group, kind] = alone.batches[0].state(0)
                local = {} if held is None else held[0].state(held[1])
                for name, each in states[group, kind].items():
                    state[f"{number}/{name}"] = self._ranks.spread(
                        meshes[owner, like.device], each.shape, like, local.get(name)
                    )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group; possible only in the constructor, where blocks are assigned to ranks and batches.

        Raises:
            ConfigError: the optimizer is made already.
        """
        if hasattr(self, "_batches"):
            raise ConfigError(
                "shampoo: a group of parameters was added to an optimizer that is made already",
                "pass all groups to the constructor",
            )
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Takes a step of all parameters that have gradients; all ranks call it.

        Raises:
            DivergedError: a gradient or a step is not finite, or a root fails for the fourth time in a row.
            ConfigError: a gradient is sparse, or a setting was changed that must not change, or to an invalid value.
            LostRank: any of these happened on another rank, or its closure failed, or ranks differ in learning rates or
                in which parameters have gradients.
        """
        loss, updates, error = None, list[Tensor](), cast("Exception | None", None)
        rates = [0.0] * len(self.param_groups)
        try:
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            configs = [each.current(group) for each, group in zip(self._settings, self.param_groups, strict=True)]
            if any(one is not other for one, other in zip(configs, self._configs, strict=True)):
                self._configs, self._alike = configs, first_alike(configs)
            rates = [float(group["lr"]) for group in self.param_groups]
            for each in self._parameters:
                each.check(each.tensor)
        except Exception as problem:  # the others are description of any, and it is raised below
            if self._exchange is None:
                raise
            error = problem
        has = [each.tensor.grad is not None for each in self._parameters]
        if self._exchange is not None and any(isinstance(each.tensor, DTensor) for each in self._parameters):
            names, device = [each.name for each in self._parameters], self._parameters[0].tensor.device
            self._ranks.check_same_step(has, rates, None if error is None else _error_text(error), names, device)
            if error is not None:
                raise error
        try:
            if error is None:
                decays = [self._decay(*each) for each in zip(self._configs, self.param_groups, rates, strict=True)]
                with self._without_autocast():
                    updates = self._own_updates(decays)
        except Exception as problem:  # the others are description of any, and it is raised below
            if self._exchange is None:
                raise
            error = problem
        every = [updates]
        if self._exchange is not None:
            every = self._exchange(updates, has, rates, None if error is None else _error_text(error))
        if error is not None:
            raise error
        self._apply(every)
        self._steps.add_(1 if all(has) else torch.tensor(has, dtype=torch.float32))
        return loss

    def _without_autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Disables autocast within the context, so that products are in the dtype of their operands."""
        within = contextlib.ExitStack()
        for kind in self._devices:
            if torch.is_autocast_enabled(kind):
                within.enter_context(torch.autocast(kind, enabled=False))
        return within

    def _own_updates(self, decays: Sequence[float]) -> list[Tensor]:
        """Returns the updates of this rank's blocks, in their order; blocks without gradients have zero updates."""
        trained = [each for each in self._parameters if each.tensor.grad is not None]
        taken = zip(self._parameters, self._steps.tolist(), strict=True)
        step_kind_of = {
            id(each): (int(before) + 1, self._alike[each.group])
            for each, before in taken
            if each.tensor.grad is not None
        }
        gradients = {id(each): views for each, views in zip(trained, full_gradient_blocks(trained), strict=True)}
        decaying = [each for each in trained if decays[each.group]]
        weights = {id(each): views for each, views in zip(decaying, full_blocks(decaying), strict=True)}
        if self._exchange is not None:  # other ranks' blocks as well: no rank may continue if one cannot
            check_finite(trained, [gradients[id(each)] for each in trained])
        for batches, items_by_batch in self._batches:
            _fill(batches.gradients, items_by_batch, gradients)
            if self._exchange is None:
                batches.check(
                    [[n for n, (each, _) in enumerate(items) if id(each) in step_kind_of] for items in items_by_batch]
                )
        found = list[list[Tensor | None]]()
        for (
            batches,
            items_by_batch,
        ) in self._batches:  # after all checks, so that a failed check leaves every state unchanged
            decay_F, factors = None, [decays[each.group] for items in items_by_batch for each, _ in items]
            if any(factors):
                decay_F = batches.zeros()
                blocks = batches.blocks(decay_F)
                _fill(blocks, items_by_batch, weights)
                torch._foreach_mul_([each for some in blocks for each in some], factors)  # pyright: ignore[reportPrivateUsage]
            step_kinds = {
                step_kind_of[id(each)] for items in items_by_batch for each, _ in items if id(each) in step_kind_of
            }
            own: list[list[Tensor | None]] = [[None] * len(items) for items in items_by_batch]
            for kind in sorted(step_kinds):
                step, group = kind
                chosen = [
                    [n for n, (each, _) in enumerate(items) if step_kind_of.get(id(each)) == kind]
                    for items in items_by_batch
                ]
                updates = batches.advance(chosen, step, self._configs[group], decay_F)
                for own_updates, places, blocks in zip(own, chosen, updates, strict=True):
                    for n in places:
                        own_updates[n] = blocks[n]
            found += own
        return [
            parameter.like.new_zeros(parameter.blocks[number].shape)
            if (update := found[batch][place]) is None
            else update
            for (parameter, number), (batch, place) in zip(self._order[self._ranks.place], self._own, strict=True)
        ]

    @staticmethod
    def _decay(config: ShampooArguments, group: dict[str, Any], lr: float) -> float:
        """Returns the factor of the weights in the decay term that is added to the gradient or update."""
        highest = group["highest_lr"] = max(group["highest_lr"], lr)
        match config.decay:
            case "corrected":
                return config.weight_decay * lr / highest
            case "independent":
                return config.weight_decay / highest
            case _:
                return config.weight_decay

    def _apply(self, updates: Sequence[Sequence[Tensor]]) -> None:
        """Subtracts the learning rate times its blocks' updates from each parameter."""
        found: dict[int, list[tuple[int, Tensor]]] = {}
        for items, received in zip(self._order, updates, strict=True):
            for (parameter, number), update in zip(items, received, strict=True):
                found.setdefault(id(parameter), []).append((number, update))
        together: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        for parameter in self._parameters:
            if parameter.tensor.grad is None or not parameter.blocks:
                continue
            if not parameter.has_views:
                parameter.subtract(found[id(parameter)], self.param_groups[parameter.group]["lr"])
                continue
            views = parameter.views(parameter.tensor)
            targets, sources = together.setdefault(parameter.group, ([], []))
            dtype = parameter.dtype
            for number, update in found[id(parameter)]:
                targets.append(
                    views[number]
                )  # updates are sent in the widest dtype of all parameters, or a lower precision
                sources.append(update if update.dtype == dtype else update.to(dtype))
        for group, (targets, sources) in together.items():
            torch._foreach_add_(targets, sources, alpha=-self.param_groups[group]["lr"])  # pyright: ignore[reportPrivateUsage]

    def state_dict(self) -> dict[str, Any]:
        """Returns settings and live state, after waiting for roots that a thread is computing."""
        for batches, _ in self._batches:
            for batch in batches.batches:
                batch.wait_for_roots()
        return super().state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Copies a saved state, of any number of ranks, into this optimizer.

        Args:
            state_dict: a state from :meth:`state_dict`; its tensors may be plain ones instead of DTensors.

        Raises:
            ConfigError: the state is of other parameters or settings.
        """
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = hook(self, dict(state_dict)) or state_dict
        if not {"state", "param_groups"} <= state_dict.keys():
            raise ConfigError("shampoo: not the state of an optimizer: it lacks 'state' or 'param_groups'")
        groups = cast("list[dict[str, Any]]", state_dict["param_groups"])
        if [len(each["params"]) for each in groups] != [len(each["params"]) for each in self.param_groups]:
            raise ConfigError("shampoo: the state is of other groups of parameters")
        for own, saved in zip(self.param_groups, groups, strict=True):
            check_settings(own, saved)
        numbers = [number for each in groups for number in each["params"]]
        pairs = [
            (parameter, state_dict["state"].get(number, {}))
            for parameter, number in zip(self._parameters, numbers, strict=True)
        ]
        for parameter, state in pairs:
            check(parameter, self._targets(parameter), state)
        for parameter, state in pairs:
            load(parameter, self._targets(parameter), state, self._configs[parameter.group])
        for own, saved in zip(self.param_groups, groups, strict=True):
            fixed = {*self.defaults, "params", "param_names"} - {*MUTABLE_SETTINGS}
            own.update({key: value for key, value in saved.items() if key not in fixed})
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def _targets(self, parameter: Parameter) -> Mapping[str, Tensor]:
        return self.state[parameter.tensor] if parameter.blocks else {}

    def __getstate__(self) -> dict[str, Any]:
        """Returns what copies and pickles need: parameters, settings, and a state to load."""
        if self._within is not None:
            raise ConfigError(
                "shampoo: an optimizer with a process_group cannot be copied",
                "make another optimizer, and load this one's state",
            )
        return {
            "defaults": self.defaults, "made": [each.initial for each in self._settings], "groups": self.param_groups,
            "state_dict": self.state_dict(),
        }  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        groups = list[dict[str, Any]]()
        for group, made in zip(state["groups"], state["made"], strict=True):
            named = zip(group.get("param_names", ()), group["params"], strict="param_names" in group)
            groups.append({**made, "params": list(named) or group["params"]})
        Shampoo.__init__(self, groups, **state["defaults"])
        self.load_state_dict(state["state_dict"])


_Item = tuple[Parameter, int]
"""A parameter and the number of one of its blocks."""


def _block_kind(parameter: Parameter, number: int) -> tuple[tuple[int, ...], bool]:
    """Returns the shape of a block, and whether it is preconditioned."""
    return parameter.blocks[number].shape, parameter.is_preconditioned


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _named_parameters(group: Mapping[str, Any], number: int) -> Iterable[tuple[str, Tensor]]:
    names = group.get("param_names") or [f"{number}.{place}" for place in range(len(group["params"]))]
    return zip(names, group["params"], strict=True)


def _fill(
    into: Sequence[Sequence[Tensor]], items_by_batch: Sequence[Sequence[_Item]], views: Mapping[int, list[Tensor]]
) -> None:
    """Copies the blocks of the parameters that are in ``views`` into the targets of the batches."""
    pairs = [
        (target, views[id(parameter)][number])
        for targets, items in zip(into, items_by_batch, strict=True)
        for target, (parameter, number) in zip(targets, items, strict=True)
        if id(parameter) in views
    ]
    if pairs:
        targets, sources = zip(*pairs, strict=True)
        torch._foreach_copy_(list(targets), list(sources))  # pyright: ignore[reportPrivateUsage] - no public name
