"""All equations a + b = c modulo a number, as texts "a + b" of class c: the task of grokking, generalization long after
memorization (Power et al. 2022, arXiv 2201.02177, section 2)."""

import numpy as np

from attention_jax import config as settings
from attention_jax.data import data_summary, tokenizers
from attention_jax.data.labeled_texts import Labeled, LabeledTexts, encode
from attention_jax.data.vocabulary import PAD, UNK, Vocabulary
from attention_jax.errors import InputError


def equations(modulus: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a, b and a + b modulo `modulus`, [modulus^2] each.

    >>> [column.tolist() for column in equations(2)]
    [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]]
    """
    a, b = np.divmod(np.arange(modulus**2), modulus)
    return a, b, (a + b) % modulus


def load(options: settings.ModularAddition, batch_size: int) -> LabeledTexts:
    """Return the equations of `options`, divided at random by a fixed seed; those not trained on are divided equally
    into validation and test. a + b and b + a are in the same split, except for one pair at each border, since
    commutativity is not what should be generalized.
    """
    modulus, share = options.modulus, options.train_fraction
    train = round(modulus**2 * share)
    valid = (modulus**2 + train) // 2
    if not 0 < train < valid:
        raise InputError(
            f"--data.train-fraction must leave some of the {modulus**2} equations to train and some to validate, got "
            f"{share}"
        )
    a, b, c = equations(modulus)
    numbers, tokenizer = tuple(map(str, range(modulus))), tokenizers.whitespace()
    vocabulary = Vocabulary((*numbers, "+"), pad=PAD, unk=UNK)
    texts = [f"{x} + {y}" for x, y in zip(a, b)]
    tokens, length = encode(tokenizer.split(texts), vocabulary, options.max_length)
    sort_keys = np.random.default_rng(0).random((modulus, modulus))
    order = np.argsort(sort_keys[np.minimum(a, b), np.maximum(a, b)], kind="stable")
    splits = {"train": order[:train], "valid": order[train:valid], "test": order[valid:]}
    data = {name: Labeled(tokens[rows], length[rows], c[rows].astype(np.int32)) for name, rows in splits.items()}
    return LabeledTexts(
        train=(data.pop("train"),),
        held_out=data,
        texts={name: [texts[row] for row in splits[name]] for name in data},
        names=numbers,
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        facts={
            "modulus": modulus,
            **{f"{name}_equations": len(chosen) for name, chosen in splits.items()},
            "fingerprint": data_summary.fingerprint([a, b, c, order]),
        },
    )
