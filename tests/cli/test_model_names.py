"""The names that ``init`` reads from the source are those of the list."""

from ziggurat.cli.drafts.model_names import model_names
from ziggurat.core.parts import built_in_names
from ziggurat.models.build import ModelConfig


def test_all_models_are_named_in_the_order_of_the_list() -> None:
    assert model_names() == list(built_in_names(ModelConfig))
