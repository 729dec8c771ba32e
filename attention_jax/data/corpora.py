"""One door to all datasets of pairs: the type of the configuration chooses."""

from attention_jax import config as settings
from attention_jax.data import addition, corpus, dates, fra_eng, multi30k, reverse
from attention_jax.data.pairs import PairData

LOADERS = {
    settings.Dates: dates.load,
    settings.Addition: addition.load,
    settings.FraEng: fra_eng.load,
    settings.Multi30k: multi30k.load,
    settings.Reverse: reverse.load,
    settings.Corpus: corpus.load,
}


def load(config, batch_size: int = 128) -> PairData:
    """The dataset that `config` describes; `batch_size` counts sentences where batches do."""
    return LOADERS[type(config)](config, batch_size)
