"""The shared secret of a service: read from a file, sent in a header of each call, compared in constant time."""

from __future__ import annotations

import hmac
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from ziggurat.core.errors import ConfigError
from ziggurat.core.untrusted import Damage, opened

HEADER = "authorization"
"""The header that carries the token, after the word ``Bearer``."""
MAKE_TOKEN = "(umask 077; openssl rand -hex 32 > reader.token)"
"""The command that makes a token."""

_SHORTEST, _LONGEST = 32, 1024
_TOKEN = re.compile(rf"[!-~]{{{_SHORTEST},{_LONGEST}}}")


def read_token(path: Path) -> str:
    """Returns the token in a file: its only line, of 32 to 1,024 visible ASCII characters.

    Raises:
        ConfigError: the file is missing, holds no token, or may be read or changed by every user of the machine.
    """
    damage = Damage(ConfigError, f"make a token on one host, and copy the file to the others: {MAKE_TOKEN}")
    try:
        with opened(path, damage, limit=2 * _LONGEST, follow=True) as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read().decode("ascii", "replace").strip()
    except FileNotFoundError:
        raise damage.of(path, "there is no such file") from None
    refuse_public(path, mode, "token")
    if not _TOKEN.fullmatch(text):
        raise damage.of(
            path, f"holds no token: expected one line of {_SHORTEST} to {_LONGEST:,} visible ASCII characters"
        )
    return text


def refuse_public(path: Path, mode: int, what: str) -> None:
    """Validates that a file with a secret cannot be read or changed by every user of the machine.

    Raises:
        ConfigError: its ``mode`` lets them.
    """
    if mode & 0o007:
        raise ConfigError(
            f"{path}: every user of this machine can use this {what} (its mode is {stat.S_IMODE(mode):04o})",
            f"chmod 600 {path}",
        )


def token_header(token: str) -> tuple[bytes, bytes]:
    """Returns the header that carries ``token``."""
    return HEADER.encode(), f"Bearer {token}".encode()


def is_authentic(received: Sequence[str], token: str) -> bool:
    """Returns whether the values of the header ``authorization`` are exactly this token, in constant time."""
    return len(received) == 1 and hmac.compare_digest(received[0].encode(), f"Bearer {token}".encode())
