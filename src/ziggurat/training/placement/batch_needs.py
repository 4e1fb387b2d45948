"""Bounds the number of ids that a batch of a dataset looks up, from its longest bags and sequences.

A typical batch says little about a batch that happens to contain the longest bags, and memory must hold that one too.
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
    """Returns the lookups whose rows must fit into memory at the same time.

    Args:
        experiment: the config; its batch sizes count.
        dataset: the prepared dataset. A split that is not stored here, as in a run with readers, is not counted.
        ranks: number of ranks that train. Each evaluates its own batches, whose ids are sent to all ranks.
    """
    train = experiment.training.batch_size
    longest = max_ids_per_table(dataset.split("train"), dataset.schema, train)
    needs = [
        *memory_needs(train),
        Need(train, "a training batch with the longest bags and sequences", "training.batch_size", longest),
    ]
    for name in ("validation", "test"):
        split = dataset.split(name)
        examples = min(experiment.evaluation.batch_size * ranks, split.rows)
        if examples:
            description = f"a batch of {examples:,} {name} examples"
            most = max_ids_per_table(split, dataset.schema, examples)
            needs.append(Need(examples, description, "evaluation.batch_size", most))
    return needs


def max_ids_per_table(split: SplitBlocks, schema: Schema, examples: int) -> Mapping[str, int]:
    """Returns table -> maximal number of ids that ``examples`` rows look up, for tables of bags and sequences.

    Args:
        split: the rows; an empty result is returned if they are not stored here.
        schema: the schema of the dataset.
        examples: number of rows.
    """
    lists = (*schema.bags, *schema.sequences)
    if not lists or not split.folder.is_dir():
        return {}
    longest = dict[str, npt.NDArray[np.int64]]()
    for block in range(len(split.blocks)):
        rows = split.read(block)
        for name in lists:
            lengths_B: npt.NDArray[np.int64] = np.asarray(rows.column(name).value_lengths(), np.int64)
            candidates = np.concatenate([longest.get(name, lengths_B[:0]), lengths_B])
            if len(candidates) > examples:
                candidates = np.partition(candidates, -examples)[-examples:]
            longest[name] = candidates
    ids = Counter[str]()
    for name, lengths in longest.items():
        ids[schema.tables[name]] += int(lengths.sum())
    for name in schema.categorical:
        if schema.tables[name] in ids:
            ids[schema.tables[name]] += examples
    return ids
