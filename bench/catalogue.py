"""Every benchmark, by name."""

from bench.benchmark import Benchmark
from bench.micro.loader import LOADER
from bench.system.cli_start import CLI_START
from bench.system.prepare import PREPARE
from bench.system.scaling_law import SCALING_LAW
from bench.system.throughput import THROUGHPUT

BENCHMARKS: dict[str, Benchmark] = {each.name: each for each in (THROUGHPUT, SCALING_LAW, LOADER, PREPARE, CLI_START)}
