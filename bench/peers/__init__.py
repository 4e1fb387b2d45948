"""The peers: other training libraries, used as their documentation recommends, each in its own process.

They are installed in `.venv-peers` (see `install.py`), so this package does not import ziggurat. A driver
(`deepctr.py`, `fuxi.py`) reads a workload folder, trains on request epoch by epoch, and answers in JSON
(`protocol.py`).
"""
