"""How many ids the batches of a dataset look up at most: of those bags and sequences that are longest.

What a batch usually looks up says little of one that has the long bags, and memory must have room for that as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ziggurat.core.schema import Schema
from ziggurat.data.encoded.dataset import Dataset, SplitBlocks
from ziggurat.planning.offload import Need, memory_needs
from ziggurat.training.experiment import Experiment


def batch_needs(experiment: Experiment, dataset: Dataset, ranks: int) -> list[Need]:
    """What memory should have room for at once.

    Args:
        experiment: whose batches count.
        dataset: of it; of a split that is not here, as where readers feed it, nothing is counted.
        ranks: that train: each evaluates batches of its own, whose ids go to all.
    """
    train = experiment.training.batch_size
    longest = most_ids(dataset.split("train"), dataset.schema, train)
    needs = [
        *memory_needs(train),
        Need(train, "a training batch with the longest bags and sequences", "training.batch_size", longest),
    ]
    for name in ("validation", "test"):
        split = dataset.split(name)
        examples = min(experiment.evaluation.batch_size * ranks, split.rows)
        if examples:
            description = f"a batch of {examples:,} {name} examples"
            needs.append(
                Need(examples, description, "evaluation.batch_size", most_ids(split, dataset.schema, examples))
            )
    return needs


def most_ids(split: SplitBlocks, schema: Schema, examples: int) -> Mapping[str, int]:
    """Table -> ids that so many examples of the split look up at most, of those that have bags or sequences."""
    lists = (*schema.bags, *schema.sequences)
    if not lists or not split.folder.is_dir():
        return {}
    longest = dict[str, npt.NDArray[np.int64]]()
    for block in range(len(split.blocks)):
        rows = split.read(block)
        for name in lists:
            lengths_B: npt.NDArray[np.int64] = np.asarray(rows.column(name).value_lengths(), np.int64)
            every = np.concatenate([longest.get(name, lengths_B[:0]), lengths_B])
            longest[name] = every if len(every) <= examples else np.partition(every, -examples)[-examples:]
    found = Counter[str]()
    for name, lengths in longest.items():
        found[schema.tables[name]] += int(lengths.sum())
    for name in schema.categorical:
        if schema.tables[name] in found:
            found[schema.tables[name]] += examples
    return found
