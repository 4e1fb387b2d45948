"""Types and functions that all packages share: Config, errors, Schema, Batch, TableSpec, Plan, hashing, atomic files.

In: nothing. Out: names that every other package imports. Neighbours: all of them; core imports none.
Import the submodules (``from ziggurat.core.schema import Schema``): only ``core.batch`` and ``core.memory`` need torch.
"""
