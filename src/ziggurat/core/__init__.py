"""The vocabulary every room speaks: config base, errors, Schema, Batch, TableSpec, Plan, hashing, crash-safe files.

In: nothing. Out: names that every other room imports. Neighbours: all of them; core imports none.
Import the submodules (``from ziggurat.core.schema import Schema``): only ``core.batch`` needs torch.
"""
