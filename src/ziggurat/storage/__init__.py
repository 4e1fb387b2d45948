"""Rows of tables beyond memory: stores over DRAM and block devices, and a cache in front that knows what comes next.

Nothing here knows of torch, of features or of models: a row is so many float32 numbers at an id.
"""
