"""Reader processes for tests: ``python -m tests.data.ingest_reader FOLDER PORT COSTLY``."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]


class ReaderProcess:
    """A reader of a prepared dataset, in a process that is not restarted."""

    def __init__(self, folder: Path, port: int = 0, costly: bool = False) -> None:
        command = [sys.executable, "-m", "tests.data.ingest_reader", str(folder), str(port), str(int(costly))]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._port = 0

    @property
    def port(self) -> int:
        """The port, known once the reader listens."""
        if not self._port:
            assert self.process.stdout is not None
            self._port = int(self.process.stdout.readline())
        return self._port

    @property
    def address(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def main() -> None:
    from ziggurat.data.ingest.prepared import open_prepared
    from ziggurat.data.ingest.server import IngestServer

    served = replace(open_prepared(Path(sys.argv[1])), costly=sys.argv[3] == "1")
    server = IngestServer(served, port=int(sys.argv[2]))
    print(server.port, flush=True)
    sys.stdin.read()  # until the parent process is gone
    server.stop()


if __name__ == "__main__":
    main()
