"""The identity that a checkpoint writer stores with the checkpoints: its run, host, process and start time."""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ziggurat.core.errors import RunFolderError, shorten
from ziggurat.core.untrusted import Damage, as_object, parse_json


@dataclass(frozen=True, slots=True)
class Owner:
    """The run that checkpoints belong to.

    Attributes:
        name: shown in messages.
        id: unique to the run, also after its folder was moved.
    """

    name: str
    id: str


@dataclass(frozen=True, slots=True)
class WriterIdentity:
    """The process that writes checkpoints, or was the last to write them.

    Attributes:
        run: name of its run.
        run_id: id of its run.
        host: name of its host.
        pid: its process id on that host.
        machine: identifies the machine's boot and the process namespace; empty if unknown.
        since: when it became the writer, ISO 8601, UTC.
        token: unique to this writer.
        lease_s: seconds without a heartbeat after which it is taken for dead.
        beat: number of heartbeats so far.
        ended: whether it has ended in order.
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
    def of_this_process(cls, owner: Owner, lease_s: float) -> WriterIdentity:
        """Returns a new identity of this process."""
        return cls(
            run=_without_control_characters(owner.name),
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
        """Parses the content that :meth:`to_bytes` made; ``place`` is where it was read, for messages.

        Raises:
            RunFolderError: it is something else.
        """
        damage = Damage(RunFolderError, "delete it, if no training writes there")
        values = as_object(parse_json(data, place, damage), place, damage)
        for field in fields(cls):
            if not _is_valid(field.name, values.get(field.name)):
                given = shorten(values[field.name]) if field.name in values else "none"
                raise damage.of(place, f"does not say who writes here: {field.name}: received {given}")
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    def to_bytes(self) -> bytes:
        """Returns the identity as JSON."""
        return f"{json.dumps(asdict(self), indent=2)}\n".encode()

    def next_beat(self, *, ended: bool = False) -> WriterIdentity:
        """Returns the same identity with the next heartbeat."""
        return replace(self, beat=self.beat + 1, ended=ended)

    def check_owner(self, owner: Owner, place: str) -> None:
        """Checks that the writer belongs to the run ``owner``; ``place`` is named in the message.

        Raises:
            RunFolderError: it belongs to another run.
        """
        if self.run_id != owner.id:
            raise RunFolderError(
                f"{place}: holds the checkpoints of another run, {self.run} (id {self.run_id}); "
                f"this is {owner.name} (id {owner.id})",
                "name another place in checkpoints.store; where that run is not needed any more, delete what is there",
            )

    def is_dead(self) -> bool:
        """Returns whether it ran on this machine and no longer does; False if that cannot be known from here."""
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


def _is_valid(name: str, value: Any) -> bool:
    """Returns whether ``value`` can be what :class:`WriterIdentity` has under ``name``."""
    match name:
        case "beat" | "pid":
            return type(value) is int and 0 <= value < 2**63 and (value > 0 or name == "beat")
        case "lease_s":
            return type(value) in {int, float} and 0 < value < 86_400
        case "ended":
            return type(value) is bool
        case _:
            return isinstance(value, str) and value == _without_control_characters(value)


def _without_control_characters(text: str) -> str:
    return "".join("?" if ord(each) < 32 or 127 <= ord(each) < 160 else each for each in text)


def _machine() -> str:
    """Returns an id that differs between boots of the machine and between process namespaces (containers)."""
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{start} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
