"""The errors of an export that cannot be trusted."""

from __future__ import annotations

from ziggurat.core.errors import DataError
from ziggurat.core.untrusted import Damage

DAMAGED = Damage(DataError, "export the run again: ziggurat export RUN OUT")
