"""The four sentences that Dive into Deep Learning translates after training on 512 pairs, with the book's BLEU.

Chapter: recurrent attention
Source: Dive into Deep Learning 11.4 and 11.7, output of the published notebooks
Data: English-French sentences of tatoeba.org; `--data.path fra-eng.zip` reads the published file
Command: python launch.py reproduce fra_eng_sentences
Cost: 2.2 minutes

The models are those of `fra_eng_bahdanau` and `fra_eng_transformer`, after the last epoch, as in the book. Three of the
four sentences ("go .", "i lost .", "i'm home .") are training pairs with just these translations; only "he's calm ." is
new. The numbers say that a model has memorized its training pairs and not how well it translates, and nothing is
claimed about them.

BLEU is the book's own (section 10.7.6): up to bigrams, with the weights 1/2 and 1/4 as exponents, a sentence at a time.
The editions differ widely. Bahdanau's attention has 1, 1, 0, 1 in PyTorch, 0, 1, 0, 1 in JAX, 0, 1, 0, 0.51 in MXNet
and 0, 0, 0, 0.51 in TensorFlow. The Transformer has 1, 0.69, 0.66, 1 in PyTorch (1, 1, 0.37, 1 in another printing of
that edition), 0, 1, 0.47, 0.51 in JAX, 1, 1, 0.65, 0.52 in MXNet and 1, 1, 0.66, 0.52 in TensorFlow. Ours with three
seeds: 1, 1, 0.66, 1 twice and 1, 1, 0, 1 with Bahdanau's attention; 1, 1, 0.66, 1 twice and 0, 1, 0, 1 with the
Transformer.
"""

import math
from collections import Counter

from attention_jax.config import Config, Grid, replace
from experiments import fra_eng_bahdanau, fra_eng_transformer

SEEDS = 3
PAIRS = {
    "go .": "va !",
    "i lost .": "j'ai perdu .",
    "he's calm .": "il est calme .",
    "i'm home .": "je suis chez moi .",
}


def config() -> Config:
    return of(fra_eng_bahdanau.config())


def of(config: Config) -> Config:
    """The configuration under this experiment's name, with the last epoch's parameters and d2l's 9 tokens."""
    return replace(config, **{"name": "fra_eng_sentences", "train.use_best": False, "decode.max_length": 9})


def variants() -> dict[str, Config]:
    return {"bahdanau": config(), "transformer": of(fra_eng_transformer.config())}


def bleu(written: str, reference: str, most: int = 2) -> float:
    """d2l's BLEU of a sentence, exp(min(0, 1 - R / W)) prod_n p_n^(1 / 2^n) over n = 1 .. `most` (equation 10.7.4).

    W and R count the tokens written and of the reference; p_n is the share of the n-grams written that the reference
    has.

    >>> bleu("va !", "va !"), round(bleu("il est mouillé .", "il est calme ."), 3), bleu("", "va !")
    (1.0, 0.658, 0.0)
    """
    hypothesis_tokens, reference_tokens = written.split(), reference.split()
    if not hypothesis_tokens:
        return 0.0
    score = math.exp(min(0.0, 1 - len(reference_tokens) / len(hypothesis_tokens)))
    for n in range(1, min(most, len(hypothesis_tokens)) + 1):
        counts = [
            Counter(tuple(side[i : i + n]) for i in range(len(side) - n + 1))
            for side in (hypothesis_tokens, reference_tokens)
        ]
        matches = counts[0] & counts[1]
        score *= (matches.total() / counts[0].total()) ** (0.5**n)
    return score


def study(config: Config, directory) -> dict:
    """Train, translate the four sentences, and score each."""
    from attention_jax import tasks
    from attention_jax.train.loop import train_one

    task = tasks.build(config)
    _, params = train_one(task, config.optim, config.train, directory)
    written = task.predict(params, list(PAIRS))
    scores = [bleu(*pair) for pair in zip(written, PAIRS.values(), strict=True)]
    return {f"bleu_{number}": score for number, score in enumerate(scores, 1)} | {"bleu": sum(scores) / len(scores)}


GRIDS = (
    Grid("BLEU", {sentence: f"bleu_{number}" for number, sentence in enumerate(PAIRS, 1)}, ("bahdanau", "transformer")),
)
