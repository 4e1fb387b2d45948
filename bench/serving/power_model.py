"""The power of hosts that serve the same requests, with all tables in memory or with most of them on drives.

A host takes ``base + dram * GB of memory + drive * drives`` watts. A host with tables on drives answers a share of the
requests of one with all of them in memory, so the same traffic takes more of them::

    saving = 1 - (power with drives / share) / (power without)

Where a number is from:

- memory: 3 W for a DDR4 module of 8 GB under load, the reference of the usual calculators (cal12.calculator.city,
  "DDR4 RAM Power Calculator"), so .375 W a GB; larger modules take less for a GB;
- drives: 4 W idle is the lowest of Intel's NVMe drives of data centres, and reads take more (Intel, "Managing power
  consumption of Intel Data Center SSDs", itpeernetwork.intel.com); 12 W is assumed here;
- hosts without memory and drives, and the tables that they hold: assumed, and stated in :data:`PLATFORMS`.

Source of the range that is compared with: Ardestani et al. 2021, "Supporting Massive DLRM Inference Through Software
Defined Memory", arXiv 2110.11489, whose abstract names savings of 5 % to 29 %. Its platforms are not these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

PUBLISHED = (5.0, 29.0)
"""The least and the greatest saving that the paper names, in per cent."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A host.

    Attributes:
        title: what it is.
        base_w: watts without memory and drives, under load.
        tables_gb: the tables of its model.
        program_gb: memory beside tables.
        drives: how many drives hold the tables, if they are not in memory.
        dram_w_gb: watts of a GB of memory.
        drive_w: watts of a drive that reads.
    """

    title: str
    base_w: float
    tables_gb: float
    program_gb: float
    drives: int
    dram_w_gb: float = 0.375
    drive_w: float = 12.0

    def saving(self, memory_share: float, rate_share: float) -> float:
        """Returns the saving in per cent.

        Args:
            memory_share: the share of the tables that memory has room for.
            rate_share: the rate of requests at equal p99, as a share of that with all tables in memory.
        """
        return 100 * (1 - self.watts(memory_share, self.drives) / rate_share / self.watts(1.0, 0))

    def watts(self, memory_share: float, drives: int) -> float:
        """Returns the power of a host."""
        memory_gb = self.program_gb + memory_share * self.tables_gb
        return self.base_w + self.dram_w_gb * memory_gb + self.drive_w * drives


PLATFORMS = {
    "one_socket": Platform("a host with one processor", 300.0, 512.0, 64.0, 2),
    "two_sockets": Platform("a host with two processors", 500.0, 768.0, 128.0, 4),
    "accelerated": Platform("a host with two processors and accelerators", 1_200.0, 1_500.0, 128.0, 6),
}


def variants(platform: Platform, rate_share: float) -> dict[str, tuple[Platform, float]]:
    """Returns what is varied -> the platform and the share of the rate, to see how the saving depends on each."""
    found: dict[str, tuple[Platform, float]] = {}
    for watts in (0.2, 0.5):
        found[f"memory {watts:g} W/GB"] = replace(platform, dram_w_gb=watts), rate_share
    for factor in (0.75, 1.5):
        watts = factor * platform.base_w
        found[f"host {watts:.0f} W"] = replace(platform, base_w=watts), rate_share
    for watts in (5.0, 25.0):
        found[f"drive {watts:g} W"] = replace(platform, drive_w=watts), rate_share
    for share in (0.9, 1.0):
        found[f"rate {100 * share:.0f} %"] = platform, share
    return found
