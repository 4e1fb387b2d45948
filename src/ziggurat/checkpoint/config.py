"""The ``checkpoints`` section of an experiment."""

from __future__ import annotations

from typing import Literal

import pydantic

from ziggurat.core.config import Config
from ziggurat.core.remote.uri import checked_store_uri

Policy = Literal["full", "one_shot", "consecutive", "intermittent"]


class CheckpointsConfig(Config):
    """What a checkpoint writes, and where. The ``training`` section sets how often, and how many are kept."""

    policy: Policy = "intermittent"
    """Which rows a checkpoint writes. ``full``: all rows. ``one_shot``: the rows that changed since the only full
    checkpoint. ``consecutive``: the rows that changed since the last checkpoint; a restore reads all deltas since the
    full checkpoint. ``intermittent``: as ``one_shot``, with a new full checkpoint whenever that is cheaper in the long
    run."""
    bits: Literal["auto", 2, 3, 4, 8, 16, 32] = 32
    """Bits per value of a table row. 32: rows are restored bit for bit. Fewer: each row is quantised within its own
    range, and each restore costs a little accuracy. ``auto``: the fewest bits that ``expected_restores`` allows. The
    checkpoints written on Ctrl-C and at the end of training always use 32."""
    expected_restores: int = pydantic.Field(default=1, ge=0)
    """How often this training is expected to resume after a failure, for ``bits: auto``. Up to 1: 2 bits; up to 3: 3
    bits; up to 20: 4 bits; more: 8 bits. Once there were more restores than expected, checkpoints use 8 bits."""
    quantiser: Literal["adaptive", "asymmetric", "symmetric"] = "adaptive"
    """How the range of a quantised row is chosen. ``adaptive``: the range with the least error. ``asymmetric``: from
    the row's minimum to its maximum. ``symmetric``: symmetric around zero. With more than 4 bits ``adaptive`` equals
    ``asymmetric``."""
    consecutive_deltas: int = pydantic.Field(default=32, ge=1)
    """For ``policy: consecutive``: how many deltas may follow a full checkpoint before the next full one is written.
    This bounds what a restore reads."""
    store: str | None = None
    """Where the checkpoints of this run, and of no other run, are stored: the absolute path of a folder, or a URL such
    as s3://BUCKET/PREFIX (requires ``pip install "ziggurat[s3]"``). Default: in the run folder. Endpoint, region and
    credentials come from the environment: AWS_ENDPOINT_URL, AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID with
    AWS_SECRET_ACCESS_KEY, or AWS_PROFILE. AWS_MAX_ATTEMPTS (default 5) limits how often a request is tried. The object
    store must support conditional writes."""

    @pydantic.field_validator("store")
    @classmethod
    def _valid_store(cls, store: str | None) -> str | None:
        return None if store is None else checked_store_uri(store)

    def bits_after(self, restores: int) -> Literal[2, 3, 4, 8, 16, 32]:
        """Returns the bits of the next checkpoint of a training that was resumed ``restores`` times.

        Source: Eisenman et al. 2022, "Check-N-Run", NSDI, section 5.2.
        """
        if self.bits != "auto":
            return self.bits
        if restores > self.expected_restores or self.expected_restores > 20:
            return 8
        return 2 if self.expected_restores <= 1 else 3 if self.expected_restores <= 3 else 4
