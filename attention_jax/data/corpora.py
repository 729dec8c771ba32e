"""Loading of any dataset of sequence pairs."""

from attention_jax.config import DataOptions, import_object
from attention_jax.data.pairs import PairData


def load(options: DataOptions, batch_size: int = 128) -> PairData:
    """Load the dataset that `options` describe; `batch_size` is in sentences."""
    return import_object(options.loader)(options, batch_size)
