"""Searches settings of an experiment that validate better: trials as processes, a study that resumes, a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ziggurat.search.pipelines.estimator import PipelineSearch

__all__ = ["PipelineSearch"]


def __getattr__(name: str) -> Any:
    if name != "PipelineSearch":
        raise AttributeError(f"module 'ziggurat.search' has no attribute {name!r}")
    from ziggurat.search.pipelines.estimator import PipelineSearch

    return PipelineSearch
