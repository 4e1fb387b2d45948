"""Where training batches come from: this machine's loader, or the readers that the config names."""

from __future__ import annotations

from ziggurat.core.progress import Progress
from ziggurat.data.dataset import Dataset
from ziggurat.data.ingest.loader import IngestLoader
from ziggurat.data.loader import Loader
from ziggurat.training.config import TrainingConfig


def fed(loader: Loader, dataset: Dataset, config: TrainingConfig, progress: Progress) -> Loader | IngestLoader:
    """``loader`` itself, or one that has ``training.readers`` make the same batches.

    Args:
        loader: of the training split.
        dataset: that it goes through; its training rows need not lie here where there are readers.
        config: names the readers.
        progress: told when one is lost or comes back.
    """
    if not config.readers:
        return loader
    return IngestLoader(
        loader,
        config.readers,
        "train",
        dataset.fingerprint,
        dataset.schema,
        seconds=config.reader_timeout,
        note=progress.note,
    )
