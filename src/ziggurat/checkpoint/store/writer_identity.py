"""What the one who writes checkpoints says of itself, beside them: of which run, where, since when."""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from ziggurat.core.errors import RunFolderError


@dataclass(frozen=True, slots=True)
class Owner:
    """The run that checkpoints are of.

    Attributes:
        name: for people.
        id: of this run and no other, wherever it is moved.
    """

    name: str
    id: str


@dataclass(frozen=True, slots=True)
class WriterIdentity:
    """A process that writes checkpoints, or has written them last.

    Attributes:
        run: name of its run.
        run_id: id of its run.
        host: where it runs.
        pid: its process there.
        machine: this start of the machine, and which processes can be seen; empty where that is not known.
        since: ISO 8601, UTC.
        token: of this writer and no other.
        lease_s: after so long without another beat it is taken for dead.
        beat: counts up while it lives.
        ended: whether it has said that it ends.
    """

    run: str
    run_id: str
    host: str
    pid: int
    machine: str
    since: str
    token: str
    lease_s: float
    beat: int = 0
    ended: bool = False

    @classmethod
    def here(cls, owner: Owner, lease_s: float) -> WriterIdentity:
        """This process, from now on."""
        return cls(
            run=owner.name,
            run_id=owner.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            machine=_machine(),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            token=secrets.token_hex(8),
            lease_s=lease_s,
        )

    @classmethod
    def from_bytes(cls, data: bytes, place: str) -> WriterIdentity:
        """As :meth:`to_bytes` made them.

        Raises:
            RunFolderError: they are something else.
        """
        try:
            values = cast("dict[str, Any]", json.loads(data.decode()))
            made = cls(**{field.name: values[field.name] for field in fields(cls)})
            numbers: tuple[Any, ...] = (made.beat, made.pid)
            if not all(isinstance(number, int) for number in numbers) or not 0 < float(made.lease_s) < 86_400:
                raise ValueError("a number is none, or out of its range")
        except (ValueError, KeyError, TypeError) as error:
            raise RunFolderError(
                f"{place}: does not say who writes here: {type(error).__name__}: {error}",
                "delete it, if no training writes there",
            ) from None
        return made

    def to_bytes(self) -> bytes:
        """JSON."""
        return f"{json.dumps(asdict(self), indent=2)}\n".encode()

    def beaten(self, *, ended: bool = False) -> WriterIdentity:
        """The same, one beat later."""
        return replace(self, beat=self.beat + 1, ended=ended)

    def check_owner(self, owner: Owner, place: str) -> None:
        """Refuse a place that is another run's.

        Raises:
            RunFolderError: it is.
        """
        if self.run_id != owner.id:
            raise RunFolderError(
                f"{place}: holds the checkpoints of another run, {self.run} (id {self.run_id}); "
                f"this is {owner.name} (id {owner.id})",
                "name another place in checkpoints.store; where that run is not needed any more, delete what is there",
            )

    def is_dead(self) -> bool:
        """Whether it ran on this machine and does so no longer; False where it cannot be known from here."""
        if not self.machine or self.machine != _machine():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (PermissionError, OverflowError):
            return False
        return False

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}, which trains {self.run} since {self.since}"


def _machine() -> str:
    """Changes with each start of the machine, and with what numbers of processes mean (containers)."""
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{start} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
