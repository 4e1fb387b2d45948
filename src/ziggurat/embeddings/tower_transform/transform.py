"""The tower transform after the tables' lookup: towers' fields, their modules, and the exchange between peers.

Shape legend: H hosts, b rows of a rank, F_t fields of a tower, N their width, O outputs of all towers, D their width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedTensor

from ziggurat.core.errors import ConfigError
from ziggurat.embeddings.field_order import FieldOrder
from ziggurat.embeddings.layout import Layout
from ziggurat.embeddings.tower_transform.exchanges import HostRanks, PeerExchange
from ziggurat.embeddings.wire import Wire
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.world import World


class TowerTransform:
    """Computes the fields of this rank's rows from the pooled rows of the host's tables.

    Without modules the fields are those of the layout, in its order; with modules, the outputs of all towers, the first
    tower's first. All ranks make it together.

    Args:
        layout: the tables and fields; the rows are the fields, without a learned step between.
        towers: the features of each tower; as many towers on each host, the first ones on the first host.
        world: the ranks, on several hosts.
        device: their device.
        wire: the precision in which rows, outputs and gradients are sent; fp32 by default.
        memory: the config by which CPU ranks of a host exchange through shared memory; None for sockets.

    Raises:
        ConfigError: the number of hosts does not divide that of towers.
    """

    def __init__(
        self,
        layout: Layout,
        towers: Sequence[Sequence[str]],
        world: World,
        device: torch.device,
        wire: Wire | None = None,
        memory: ParallelConfig | None = None,
    ) -> None:
        assert layout.direct, "fields with learned steps"
        self.ranks = HostRanks(world, wire, memory)
        self._layout, self._device = layout, device
        self.own = own_towers(len(towers), world)
        self._towers = [tuple(towers[number]) for number in self.own]
        vectors = {feature: layout.table_of[feature].vectors for tower in towers for feature in tower}
        self._fields = [sum(vectors[feature] for feature in tower) for tower in towers]
        self._order: FieldOrder | None = None
        self._modules: list[nn.Module] = []
        self._autocast = False
        self._width = layout.dim
        self._exchange = PeerExchange(self.ranks, _by_host([each * layout.dim for each in self._fields], world))
        starts: dict[str, int] = {}
        for feature in (each for tower in towers for each in tower):
            starts[feature] = sum(vectors[other] for other in starts)
        places = [starts[f] + number for f in layout.schema.sparse for number in range(vectors[f])]
        self._to_layout = FieldOrder(places, device)

    def call(self, modules: Sequence[nn.Module], outputs: Sequence[int], width: int, *, autocast: bool) -> None:
        """Sets the modules of this host's towers, which are called from now on.

        Args:
            modules: those of :attr:`own`; they stay registered where they are.
            outputs: the number of outputs of each tower, of all hosts.
            width: D.
            autocast: whether they compute in bfloat16.
        """
        assert len(modules) == len(self.own)
        self._modules, self._width, self._autocast = list(modules), width, autocast
        self._exchange = PeerExchange(self.ranks, _by_host([each * width for each in outputs], self.ranks.world))

    def __call__(self, keyed: KeyedTensor) -> Tensor:
        """Returns the fields of this rank's rows: (b, F, N), or (b, O, D) with modules.

        Args:
            keyed: the rows of this host's tables, (H·b, …), those of the first host's peer first.
        """
        emb_RFN = self._in_order(keyed)
        if not self._modules:
            fields = self._exchange(emb_RFN.flatten(1)).unflatten(1, (-1, self._layout.dim))
            return self.in_layout(fields)
        outputs = [module(part) for module, part in self._with_parts(emb_RFN)]
        sent = torch.cat(outputs, dim=1).float() if len(outputs) > 1 else outputs[0].float()
        return self._exchange(sent.flatten(1)).unflatten(1, (-1, self._width))

    def in_layout(self, fields: Tensor) -> Tensor:
        """Puts the fields of all towers, the first tower's first, into the layout's order."""
        return self._to_layout(fields)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yields the parameters of this host's towers."""
        for module in self._modules:
            yield from module.parameters()

    def average_gradients(self) -> None:
        """Averages the gradients of this host's towers over its ranks; to be called after the backward pass."""
        self.ranks.average_within(each.grad for each in self.parameters() if each.grad is not None)

    def _with_parts(self, emb_RFN: Tensor) -> Iterator[tuple[Callable[[Tensor], Tensor], Tensor]]:
        counts = [self._fields[number] for number in self.own]
        for module, part in zip(self._modules, emb_RFN.split(counts, dim=1), strict=True):
            yield self._cast(module), part

    def _cast(self, module: nn.Module) -> Callable[[Tensor], Tensor]:
        def call(part: Tensor) -> Tensor:
            with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._autocast):
                return module(part)

        return call

    def _in_order(self, keyed: KeyedTensor) -> Tensor:
        """Returns the fields of this host's towers, those of the first tower first: (H·b, F, N)."""
        emb_RFN = keyed.values().unflatten(1, (-1, self._layout.dim))
        if self._order is None:
            table_of = self._layout.table_of
            keys = keyed.keys()
            starts = dict(zip(keys, accumulate((table_of[key].vectors for key in keys), initial=0), strict=False))
            wanted = [feature for tower in self._towers for feature in tower]
            places = [starts[f] + number for f in wanted for number in range(table_of[f].vectors)]
            self._order = FieldOrder(places, self._device)
        return self._order(emb_RFN)


def own_towers(towers: int, world: World) -> range:
    """Returns the towers of this rank's host.

    Raises:
        ConfigError: the number of hosts does not divide that of towers.
    """
    each = towers_of_a_host(towers, world.hosts)
    host = world.rank // world.local_size
    return range(host * each, (host + 1) * each)


def towers_of_a_host(towers: int, hosts: int) -> int:
    """Returns how many towers each host has.

    Raises:
        ConfigError: the number of hosts does not divide that of towers.
    """
    each, rest = divmod(towers, hosts)
    if rest:
        raise ConfigError(
            f"towers.partition: there are {towers} towers and {hosts} hosts, and tower_transform has as many "
            "towers on each host",
            f"choose a multiple of {hosts} towers, or set parallel.embeddings: {{name: flat}}",
        )
    return each


def _by_host(widths: Sequence[int], world: World) -> list[int]:
    """Returns the sums over the towers of each host."""
    each = len(widths) // world.hosts
    return [sum(widths[host * each : (host + 1) * each]) for host in range(world.hosts)]
