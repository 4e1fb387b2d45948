"""Versions of a served model: taken from a training's checkpoints, kept, switched by all workers of a host at once."""
