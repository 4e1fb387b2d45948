"""The peers: other people's training libraries, run as they mean to be run, each in a process of its own.

They live in `.venv-peers` (see `install.py`); nothing here imports ziggurat. A driver (`deepctr.py`, `fuxi.py`) reads a
workload folder, trains epoch after epoch, and answers on standard output in JSON (`protocol.py`).
"""
