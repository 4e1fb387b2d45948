"""python -m bench.lab --hosts 4 --ranks 2 --inter 500mbit -- -m ziggurat train exp.yaml"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from bench.lab.cluster import MOST_HOSTS, Cluster, Shape
from bench.lab.launch import launch
from bench.lab.stop import Stop
from ziggurat.core.errors import ZigguratError


def main(arguments: Sequence[str] | None = None) -> int:
    """The command's exit status; 2 where there can be no cluster, 128 and the signal's number where one stopped it."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.lab", description="Run a command under torchrun on hosts with slow links between them."
    )
    parser.add_argument("--hosts", type=_count("hosts", MOST_HOSTS), default=2, help=f"1 to {MOST_HOSTS}")
    parser.add_argument("--ranks", type=_count("processes a host"), default=1, help="processes a host")
    parser.add_argument("--inter", default="500mbit", help="rate of each host's link, as tc writes it")
    parser.add_argument("command", nargs="+", help="behind --: a script, or -m and a module, with arguments")
    options = parser.parse_args(arguments)
    with Stop() as stop:
        try:
            with Cluster(Shape(options.hosts, options.inter)) as cluster:
                ended = launch(cluster, options.ranks, options.command, _say, stopped=stop.asked)
        except ZigguratError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        if stop.signal is not None:
            print(f"stopped by {stop.signal.name}; all ranks have ended, the hosts are removed", file=sys.stderr)
            return 128 + stop.signal
    print(
        f"{ended.seconds:.1f} s, exit status {ended.status}; sent between hosts {ended.traffic.inter:,} bytes, "
        f"inside them {ended.traffic.intra:,}"
    )
    return ended.status


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")  # in one piece: a thread of each host's says something
    sys.stdout.flush()


def _count(what: str, most: int | None = None) -> Callable[[str], int]:
    allowed = "a whole number from 1" if most is None else f"a whole number from 1 to {most}"

    def count(text: str) -> int:
        number = int(text) if text.strip().removeprefix("-").isdecimal() else 0
        if number < 1 or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"received {text!r}; {what} are {allowed}")
        return number

    return count


if __name__ == "__main__":
    sys.exit(main())
