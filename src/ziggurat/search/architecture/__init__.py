"""Searches the architecture of a model in one training of a super-net, or by one training after the other."""
