"""Towers: groups of features whose embeddings are compressed together before the model sees them.

In: the embeddings of all features, (B, F, N). Out: those of the towers' outputs, (B, O, D), tower by tower. ``config``
says which features are together and what compresses them, ``modules`` compress, ``model`` puts them before a model.
"""
