"""ziggurat trains a workload: `python -m bench.system.ours FOLDER`."""
