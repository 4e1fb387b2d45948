"""What verification has checked and found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from ziggurat.core.errors import ZigguratError

Kind = Literal["run", "prepared dataset", "scaling sweep", "ensemble", "export", "checkpoints"]
State = Literal["whole", "damaged", "no checksum"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Checked:
    """One thing that was checked.

    Attributes:
        name: its path relative to the folder.
        state: ``whole``: as it was written; ``damaged``: it is not; ``no checksum``: it is of a version without
            checksums, and does not contradict itself.
        detail: its size, such as ``3 files, 2 MB``.
    """

    name: str
    state: State
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DamageReport:
    """Something that is damaged or missing: what, naming its file, and what to do about it."""

    problem: str
    hint: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification.

    Attributes:
        path: what was verified.
        kind: what it is.
        checked: what was checked, in order.
        problems: what is damaged or missing, and what to do about it.
        notes: remarks that are not damage, such as about files that do not belong to it.
    """

    path: str
    kind: Kind
    checked: tuple[Checked, ...]
    problems: tuple[DamageReport, ...]
    notes: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged or missing."""
        return not self.problems


@dataclass(slots=True)
class Findings:
    """Collects what is found.

    Attributes:
        prefix: what to put before the names of what is checked.
        checked, problems, notes: as in :class:`Verified`.
    """

    prefix: str = ""
    checked: list[Checked] = field(default_factory=list[Checked])
    problems: list[DamageReport] = field(default_factory=list[DamageReport])
    notes: list[str] = field(default_factory=list[str])

    def within(self, prefix: str) -> Findings:
        """Returns findings that are added to these, under names that begin with ``prefix``."""
        return Findings(f"{self.prefix}{prefix}", self.checked, self.problems, self.notes)

    def read(
        self,
        name: str,
        read: Callable[[], T],
        detail: str = "",
        *,
        has_checksum: Callable[[T], bool] = lambda found: True,
    ) -> T | None:
        """Checks one thing by reading it.

        Args:
            name: its name.
            read: reads it, and raises an error that says how it is damaged.
            detail: its size, such as ``3 files, 2 MB``.
            has_checksum: says of what was read whether it has a checksum.

        Returns:
            What was read; None if it is damaged.
        """
        try:
            found = read()
        except ZigguratError as error:
            self.damaged(name, error.problem, error.hint, detail)
            return None
        except OSError as error:
            self.damaged(name, f"{error.filename or name}: cannot be read: {error.strerror}", "check the disk", detail)
            return None
        self.checked.append(Checked(f"{self.prefix}{name}", "whole" if has_checksum(found) else "no checksum", detail))
        return found

    def damaged(self, name: str, problem: str, hint: str, detail: str = "") -> None:
        """Adds something that is damaged or missing."""
        self.checked.append(Checked(f"{self.prefix}{name}", "damaged", detail))
        self.problems.append(DamageReport(problem, hint))

    def verified(self, path: str, kind: Kind) -> Verified:
        """Returns all findings as a result."""
        return Verified(path, kind, tuple(self.checked), tuple(self.problems), tuple(self.notes))
