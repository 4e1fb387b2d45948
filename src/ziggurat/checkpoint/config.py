"""The ``checkpoints`` section of an experiment."""

from __future__ import annotations

from typing import Literal

import pydantic

from ziggurat.checkpoint.store.uri import checked_place
from ziggurat.core.config import Config

Policy = Literal["full", "one_shot", "consecutive", "intermittent"]


class CheckpointsConfig(Config):
    """What a checkpoint writes; when there is one, and how many are kept, the ``training`` section says."""

    policy: Policy = "intermittent"
    """Which rows a checkpoint writes. ``full``: all. ``one_shot``: those that changed since the one full checkpoint.
    ``consecutive``: those that changed since the last checkpoint, so that a restore reads all of them up to the full
    one. ``intermittent``: as one_shot, with a new full checkpoint whenever that is cheaper in the long run."""
    bits: Literal["auto", 2, 3, 4, 8, 16, 32] = 32
    """Of a number in a row of a table. 32: what is restored is what was saved, bit for bit. Fewer: rows are quantised,
    each in its own range, and each restore costs a little accuracy; ``auto`` takes as few as ``expected_restores``
    allows. A stop by Ctrl-C, and the end of training, always save in 32."""
    expected_restores: int = pydantic.Field(default=1, ge=0)
    """How often this training will go on from a checkpoint after a failure; for ``bits: auto``: up to 1 takes 2 bits,
    up to 3 takes 3, up to 20 takes 4, more take 8, and so does every checkpoint once there were more than expected."""
    quantiser: Literal["adaptive", "asymmetric", "symmetric"] = "adaptive"
    """A row's range: the one of the least error, from its least to its greatest number, or the same on both sides of
    zero. ``adaptive`` differs from ``asymmetric`` up to 4 bits."""
    consecutive_deltas: int = pydantic.Field(default=32, ge=1)
    """Of ``consecutive``: after so many a full checkpoint is written, which bounds what a restore reads."""
    store: str | None = None
    """Where this run's checkpoints lie, and no other run's: a folder with its whole path, or a URL, as in
    s3://BUCKET/PREFIX (``pip install "ziggurat[s3]"``); default: in the run folder. Endpoint, region and credentials
    come from the environment, as in AWS_ENDPOINT_URL, AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID with
    AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; AWS_MAX_ATTEMPTS (5) says how often a request is tried. The store must know
    conditional writes."""

    @pydantic.field_validator("store")
    @classmethod
    def _is_a_place(cls, store: str | None) -> str | None:
        return None if store is None else checked_place(store)

    def bits_after(self, restores: int) -> Literal[2, 3, 4, 8, 16, 32]:
        """The bits of a checkpoint, once training has gone on from one ``restores`` times.

        Source: Eisenman et al. 2022, "Check-N-Run", NSDI, section 5.2.
        """
        if self.bits != "auto":
            return self.bits
        if restores > self.expected_restores or self.expected_restores > 20:
            return 8
        return 2 if self.expected_restores <= 1 else 3 if self.expected_restores <= 3 else 4
