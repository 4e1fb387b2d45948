"""One file per model, each a composition of interaction blocks, written for one device; a plan shards it afterwards.

In: dense features (B, F_dense) and field embeddings (B, F, D). Out: one logit per row and task (B, T).
Neighbours: ``interactions`` below, ``training`` above. Models know nothing of tables, files, ranks or losses.
"""

from ziggurat.models.build import ModelConfig
from ziggurat.models.model import Model, ModelDims

__all__ = ["Model", "ModelConfig", "ModelDims"]
