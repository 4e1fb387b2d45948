"""The bandwidths within and between hosts that ranks measure before a plan is made."""

from __future__ import annotations

from tests.distributed.ranks import run_ranks
from ziggurat.parallel.world import World
from ziggurat.planning.config import TopologyConfig
from ziggurat.training.placement.link_benchmark import with_measured_links


def measured(rank: int) -> list[tuple[float | None, float | None]]:
    """Returns (within, between) for nothing given, for one given, and for hosts of one rank."""
    given = TopologyConfig.model_validate({"inter_bandwidth": "25Gbit/s"})
    found = [
        with_measured_links(TopologyConfig(), World(rank, 4, 2), "cpu"),
        with_measured_links(given, World(rank, 4, 2), "cpu"),
        with_measured_links(TopologyConfig(), World(rank, 4, 1), "cpu"),
    ]
    return [(each.intra_bandwidth, each.inter_bandwidth) for each in found]


def test_ranks_agree_on_links_that_are_not_given() -> None:
    ranks = run_ranks(4, measured)
    assert all(found == ranks[0] for found in ranks)
    both, one, single = ranks[0]
    for figure in (*both, one[0], single[1]):
        assert figure is not None
        assert 1e6 < figure < 1e12
    assert one[1] == 25e9 / 8
    assert single[0] is None
