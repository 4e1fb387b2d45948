"""python -m bench.lab --hosts 4 --ranks 2 --inter 500mbit -- -m ziggurat train exp.yaml"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench.lab.cluster import Cluster, Shape
from bench.lab.launch import launch
from ziggurat.core.errors import ZigguratError


def main(arguments: Sequence[str] | None = None) -> int:
    """The command's exit status; 2 where there can be no cluster."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.lab", description="Run a command under torchrun on hosts with slow links between them."
    )
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=1, help="processes a host")
    parser.add_argument("--inter", default="500mbit", help="rate of each host's link, as tc writes it")
    parser.add_argument("command", nargs="+", help="behind --: a script, or -m and a module, with arguments")
    options = parser.parse_args(arguments)
    try:
        with Cluster(Shape(options.hosts, options.inter)) as cluster:
            ended = launch(cluster, options.ranks, options.command, lambda line: print(line, flush=True))
    except ZigguratError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(
        f"{ended.seconds:.1f} s, exit status {ended.status}; sent between hosts {ended.traffic.inter:,} bytes, "
        f"inside them {ended.traffic.intra:,}"
    )
    return ended.status


if __name__ == "__main__":
    sys.exit(main())
