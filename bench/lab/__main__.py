"""Runs a command on an emulated cluster.

python -m bench.lab --hosts 4 --ranks 2 --inter 500mbit -- -m ziggurat train exp.yaml
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from bench.lab.cluster import MAX_HOSTS, Cluster, Shape
from bench.lab.launch import launch
from bench.lab.stop import Stop
from ziggurat.core.errors import ZigguratError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns an exit status.

    Returns:
        The command's status; 2 if no cluster can be created; 128 plus the number of a signal that stopped the command.
    """
    parser = argparse.ArgumentParser(
        prog="python -m bench.lab", description="Run a command under torchrun on hosts with slow links between them."
    )
    parser.add_argument("--hosts", type=_count("hosts", MAX_HOSTS), default=2, help=f"1 to {MAX_HOSTS}")
    parser.add_argument("--ranks", type=_count("processes per host"), default=1, help="processes per host")
    parser.add_argument("--inter", default="500mbit", help="rate of each host's link, in the notation of tc")
    parser.add_argument("command", nargs="+", help="after --: a script, or -m and a module, with arguments")
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
    sys.stdout.write(f"{line}\n")  # a single write, as there is a thread for each host
    sys.stdout.flush()


def _count(what: str, maximum: int | None = None) -> Callable[[str], int]:
    allowed = "a whole number from 1" if maximum is None else f"a whole number from 1 to {maximum}"

    def count(text: str) -> int:
        number = int(text) if text.strip().removeprefix("-").isdecimal() else 0
        if number < 1 or (maximum is not None and number > maximum):
            raise argparse.ArgumentTypeError(f"received {text!r}; {what} are {allowed}")
        return number

    return count


if __name__ == "__main__":
    sys.exit(main())
