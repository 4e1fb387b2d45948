"""Servers of the same model by other means, which run in `.venv-peers` and import nothing of ziggurat.

Each is started as ``python -m bench.serving.peers.NAME FOLDER PORT``, with the folder that
:func:`bench.serving.peer_model.write_peer_model` wrote, and answers ``POST /predict`` and ``POST /rank``.
"""
