"""Searches the architecture of a model in one training of a super-net, and by methods that train one after the other."""
