"""The tokens of a server's clients: names, rights and hashes, from a file without the tokens themselves.

Each line has a name, a right, a rate and the SHA-256 of a token::

    # name   right    requests a second   hash of the token
    shop     predict  200                 sha256:9f86d0…
    ops      admin    -                   sha256:60303a…

A token is made at random, so that a plain hash of it can neither be guessed nor turned back.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from ziggurat.core.errors import ConfigError, shorten
from ziggurat.core.untrusted import Damage, opened
from ziggurat.network.token import refuse_public

Right = Literal["predict", "admin"]

MAKE_TOKEN = (
    '(umask 077; t=$(openssl rand -hex 32); echo "shop predict 200 '
    'sha256:$(printf %s "$t" | sha256sum | cut -d\' \' -f1)" >> serving.tokens; echo "the token of shop: $t")'
)
"""The command that makes a token, prints it, and appends its hash to a file."""

_LIMIT = 2**20
_SHORTEST = 32
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HASH = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(slots=True)
class Client:
    """Who may call.

    Attributes:
        name: its name in logs and metrics.
        right: what it may do; ``admin`` may all.
        rate: requests a second; None: any number.
        digest: the SHA-256 of its token.
    """

    name: str
    right: Right
    rate: float | None
    digest: bytes = field(repr=False)
    _left: float = field(default=0.0, init=False)
    _at: float = field(default=0.0, init=False)

    def wait_s(self, share: float = 1.0) -> float:
        """Counts a request; returns 0, or after how many seconds it would be allowed.

        As many requests as a second may bring can come at once.

        Args:
            share: this process's share of the rate.
        """
        if self.rate is None:
            return 0.0
        rate, now = self.rate * share, time.monotonic()
        most = max(1.0, rate)
        self._left = most if not self._at else min(most, self._left + (now - self._at) * rate)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / rate


def read_token_file(path: Path) -> tuple[Client, ...]:
    """Returns the clients in a token file.

    Raises:
        ConfigError: it is missing, holds something else or no token, or every user of the machine may read it.
    """
    damage = Damage(ConfigError, f"this makes a token and appends its line: {MAKE_TOKEN}")
    try:
        with opened(path, damage, limit=_LIMIT, follow=True) as file:
            mode = os.fstat(file.fileno()).st_mode
            lines = file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        raise damage.of(path, "there is no such file") from None
    refuse_public(path, mode, "token file")
    found: list[Client] = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words:
            found.append(_client(words, f"{path}, line {number}", damage))
    if not found:
        raise damage.of(path, "holds no token")
    names = [each.name for each in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise damage.of(path, f"names {twice!r} twice")
    return tuple(found)


def find_client(received: str, clients: Sequence[Client]) -> Client | None:
    """Returns the client whose token was received, in a time that does not depend on which it is."""
    digest = hashlib.sha256(received.encode("utf-8", "surrogateescape")).digest()
    found: Client | None = None
    for client in clients:
        if hmac.compare_digest(digest, client.digest) and len(received) >= _SHORTEST:
            found = client
    return found


def _client(words: list[str], where: str, damage: Damage) -> Client:
    if len(words) != 4:
        raise damage.of(where, f"has {len(words)} words; expected NAME predict|admin RATE sha256:HASH")
    name, right, rate, digest = words
    if not _NAME.fullmatch(name):
        raise damage.of(where, f"the name is {shorten(name)}; up to 64 letters, digits, '_', '.' and '-' are allowed")
    if right not in {"predict", "admin"}:
        raise damage.of(where, f"the right is {shorten(right)}; allowed: predict, admin")
    try:
        number = None if rate == "-" else float(rate)
    except ValueError:
        number = -1.0
    if number is not None and not 0 < number < 1e9:
        raise damage.of(where, f"the rate is {shorten(rate)}; expected requests a second above 0, or - for any number")
    match = _HASH.fullmatch(digest)
    if match is None:
        raise damage.of(where, "the last word is no hash; expected sha256: and 64 hexadecimal digits")
    return Client(name, cast("Right", right), number, bytes.fromhex(match[1]))
