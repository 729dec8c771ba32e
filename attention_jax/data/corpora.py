"""One door to all datasets of pairs."""

from attention_jax.config import DataOptions, import_object
from attention_jax.data.pairs import PairData


def load(options: DataOptions, batch_size: int = 128) -> PairData:
    """The dataset that `options` describe; `batch_size` counts sentences where batches do."""
    return import_object(options.loader)(options, batch_size)
