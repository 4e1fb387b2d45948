"""Distributed Shampoo: preconditions gradients along the directions of rows and columns, instead of elementwise.

In: parameters with gradients, equal on all ranks or sharded over them. Out: a torch optimizer (``shampoo``). Its
mathematics (``blocks``, ``products``, ``roots``, ``grafts``, ``block_batch``, ``block_batches``) is independent of
ranks. ``placement`` assigns blocks to ranks and exchanges their updates; ``parameter`` handles the layout of a
parameter; ``arguments`` and ``settings`` are the settings of a group; ``loading`` restores saved states.

Sources: Gupta, Koren and Singer 2018 (arXiv 1802.09568); Anil et al. 2020 (2002.09018) for grafting and the coupled
Newton iteration; Shi et al. 2023 (2309.06497) for blocks, ranks and checks; Vyas et al. 2024 (2409.11321) for the
eigenbasis form.
"""
