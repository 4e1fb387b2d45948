from pathlib import Path
def write_scale(path, results):
    return [r.fit() for r in results]
