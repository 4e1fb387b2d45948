"""Clusters that are not learnt: k-means of the descriptors, once, and random pipelines inside each cluster."""

from __future__ import annotations

import numpy as np

from ziggurat.search.pipelines.clustering.descriptors import DESCRIPTORS, describe, standardised
from ziggurat.search.pipelines.clustering.network import clustering, plane
from ziggurat.search.pipelines.methods.proposals import Notes, Proposals, random_in_groups
from ziggurat.search.pipelines.table import Ints, Table


def kmeans(table: Table, rows: Ints, seed: int, batch: int, clusters: int, notes: Notes) -> Proposals:
    """Proposes random pipelines that the columns of a kind and a cluster share.

    Args:
        table: the table.
        rows: the training rows of one fold, which the descriptors are computed on.
        seed: seeds k-means and draws.
        batch: proposals at a time.
        clusters: how many, at most.
        notes: gets the clusters.
    """
    descriptors = standardised(describe(table, rows))
    found = min(clusters, len(np.unique(descriptors, axis=0)))
    numbers = clustering(found, seed).fit_predict(descriptors)
    notes.descriptors, notes.descriptor_names, notes.coordinates = descriptors, DESCRIPTORS, plane(descriptors)
    notes.clusters = {each.name: int(number) for each, number in zip(table.columns, numbers, strict=True)}
    return random_in_groups(table, notes.clusters, np.random.default_rng([seed, 5]), batch)
