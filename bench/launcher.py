"""Runs a command and measures it: `launcher.py FD COMMAND...`.

Writes the time and memory of the command as JSON to the file descriptor FD, and exits with the command's status.
Imports only the standard library. Its own memory (about 10 MB) is the smallest peak that can be measured.
"""

import json
import os
import sys
import time


def main() -> int:
    answer, command = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(answer, False)
    start = time.perf_counter()
    pid = os.posix_spawnp(command[0], command, os.environ)
    _, status, usage = os.wait4(pid, 0)
    report = {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }
    with os.fdopen(answer, "w") as pipe:
        json.dump(report, pipe)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    raise SystemExit(main())
