"""Boards of model quality: every model on the same split, several seeds each, beside the best published figures."""
