"""The union of all head configs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ziggurat.core.parts import Importable
from ziggurat.interactions.heads.head import HeadSettings
from ziggurat.interactions.heads.mmoe import MMoE
from ziggurat.interactions.heads.ple import PLE
from ziggurat.interactions.heads.shared_bottom import SharedBottom

HeadConfig = Annotated[
    Annotated[SharedBottom.Config | MMoE.Config | PLE.Config, Field(discriminator="name")],
    Importable(HeadSettings, "head"),
]
"""The config of any head, chosen by ``name``, or by ``import`` for one from outside the package."""
