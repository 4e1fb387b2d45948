"""Runs the command line: `python -m bench`."""

import signal
import sys

from bench.cli import main

signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that what it has started ends with it
raise SystemExit(main())
