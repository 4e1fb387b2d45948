"""The union of the configs of all search spaces."""

from __future__ import annotations

from typing import Annotated

from ziggurat.core.parts import Importable
from ziggurat.search.architecture.space.composed import ComposedSpace
from ziggurat.search.architecture.space.search_space import SpaceSettings

SpaceConfig = Annotated[ComposedSpace.Config, Importable(SpaceSettings, "search space")]
"""The config of a space: the built-in one, or by ``import`` one from outside the package."""
