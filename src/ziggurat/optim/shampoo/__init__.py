"""Distributed Shampoo: steps scaled along the directions of rows and columns, instead of by each number's own past.

In: parameters with gradients, equal on all ranks or spread over them. Out: a torch optimizer (``shampoo``). Its
mathematics (``blocks``, ``products``, ``roots``, ``grafts``, ``stack``, ``stacks``) know nothing of ranks; who owns
which block, and how updates get to the others, is ``placement``; ``parameter`` knows how one lies; ``settings`` are
those of a group, ``loading`` takes saved states.

Sources: Gupta, Koren and Singer 2018 (arXiv 1802.09568); Anil et al. 2020 (2002.09018) for grafting and the coupled
Newton iteration; Shi et al. 2023 (2309.06497) for blocks, ranks and checks; Vyas et al. 2024 (2409.11321) for the
eigenbasis form.
"""
