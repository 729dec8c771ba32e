"""Datasets of public texts: English-French sentences, Multi30k, The Time Machine, tiny Shakespeare.

A corpus (published.py) is read from its files at `path`, or downloaded and prepared by TFDS once.
"""

import numpy as np

from attention_jax import config as settings
from attention_jax.data import data_summary, pairs, tokenizers
from attention_jax.data.pairs import PairData, Pairs, Texts, concatenate_pairs, take_rows
from attention_jax.data.published import LANGUAGES, PUBLISHED, download_files, locate_file
from attention_jax.data.splits import split_by_source, text_digests
from attention_jax.data.text_windows import Windows, cut_windows
from attention_jax.data.vocabulary import UNK, Vocabulary
from attention_jax.errors import InputError


def read_corpus(name: str, path: str = "") -> dict[str, dict[str, list[str]]]:
    """Return the rows of a corpus, {split: {feature: texts}}, from its files at `path`, or downloaded."""
    corpus = PUBLISHED[name]
    if not path:
        from attention_jax.data import builders  # TFDS takes seconds to import: only where it is needed

        builder = builders.prepare_builder(builders.text_builder(name, corpus), name.partition("/")[2])
        return builders.read_rows(builder, corpus.splits)
    rows = {split: corpus.read([locate_file(path, names) for names in files]) for split, files in corpus.splits.items()}
    return {split: dict(zip(corpus.features, map(list, zip(*texts)))) for split, texts in rows.items()}


TRAIN, VALID, HELD_OUT = 512, {"d2l": 128, "d2l-641": 129}, 2_000


def load_fra_eng(config: settings.FraEng, batch_size: int = 128) -> PairData:
    """Load English-French sentence pairs of tatoeba.org (fra.txt through manythings.org/anki, CC BY 2.0), 167,130 in
    the edition that d2l uses.

    split "d2l" is the book's (11.4, 10.5): the first 512 pairs train and the next 128 validate, vocabularies from all
    640. "d2l-641" has the 129 that its reader takes, of which the last is a batch of its own, and vocabularies from all
    641. split "full" is seeded: 2,000 sources validate and 2,000 test, each with the first of its translations; no
    source (lower-cased, spaced as d2l does) is in two splits and no pair occurs twice.
    """
    texts = Texts(**read_corpus("fra_eng/d2l", config.path)["train"])
    count, place = len(texts.source), config.path or "the published file"
    if config.split in VALID:
        needed = TRAIN + VALID[config.split]
        if count < needed:
            raise InputError(f"d2l's split needs {needed} pairs, {place} has {count}")
        rows = {"train": np.arange(TRAIN), "valid": np.arange(TRAIN, needed)}
        vocabulary_splits = ("train", "valid")
    else:
        if count < 20:
            raise InputError(f"a split of sentence pairs needs at least 20, {place} has {count}")
        keys = [text_digests(" ".join(row) for row in tokenizers.words().split(side)) for side in texts]
        held_out = min(HELD_OUT, count // 20)
        rows = split_by_source(*keys, {"valid": held_out, "test": held_out}, seed=0)
        vocabulary_splits = ("train",)
    plain = config.tokenizer in ("sentencepiece", "character")
    data = pairs.assemble(
        {name: take_rows(texts, numbers) for name, numbers in rows.items()},
        config,
        batch_size,
        languages=("en", "fr"),
        vocabulary_from=vocabulary_splits,
        bleu_tokenize="13a" if plain else "none",
    )
    source_width = config.max_length if config.pad_source else 0
    target_width = config.max_length if config.predict_padding else 0
    widen = lambda split: widen_pairs(split, source_width, target_width, data.target_vocabulary.pad_id)
    held_out = {name: widen(split) for name, split in data.held_out.items()}
    return data._replace(train=tuple(map(widen, data.train)), held_out=held_out)


def widen_pairs(split: Pairs, source_width: int, target_width: int, pad: int) -> Pairs:
    """Return the pairs with sources of `source_width` tokens, including padding, and as many tokens to predict in
    every target as `target_width`, including padding; 0 leaves a side as it is.

    >>> rows = Pairs(np.array([[5, 2]]), np.array([2]), np.array([[1, 7, 2]]), np.array([2]))
    >>> [column.tolist() for column in widen_pairs(rows, 4, 4, pad=0)]
    [[[5, 2, 0, 0]], [2], [[1, 7, 2, 0, 0]], [4]]
    """
    widen = lambda array, width: np.pad(array, [(0, 0), (0, width - array.shape[1])], constant_values=pad)
    if source_width:
        split = split._replace(source=widen(split.source, source_width))
    if target_width:
        lengths = np.full_like(split.target_length, target_width)
        split = split._replace(target=widen(split.target, target_width + 1), target_length=lengths)
    return split


def load_multi30k(config: settings.Multi30k, batch_size: int = 128) -> PairData:
    """Load Multi30k (`multi30k`) in the form and the languages of `config`."""
    form, languages = config.form, (config.source, config.target)
    name = f"multi30k/{form}_{config.source}_{config.target}"
    if name not in PUBLISHED:
        raise InputError(
            f"Multi30k {form} has pairs of {', '.join(LANGUAGES[:2] if form == 'bpe' else LANGUAGES)}, not "
            f"{config.source}-{config.target}; choose --data.source and --data.target among them"
        )
    if (form == "bpe") != (config.tokenizer == "bpe"):
        raise InputError(
            "--data.form bpe and --data.tokenizer bpe belong together, "
            f"got form {form} and tokenizer {config.tokenizer}"
        )
    splits = {split: Texts(**columns) for split, columns in read_corpus(name, config.path).items()}
    if config.concatenated_pairs > 1:
        most = config.concatenated_pairs
        splits = {split: concatenate_pairs(texts, most, seed) for seed, (split, texts) in enumerate(splits.items())}
    merges = locate_file(config.path or download_files(name), ("bpe/en-de/code", "code")) if form == "bpe" else ""
    plain = form == "raw" and config.tokenizer in ("sentencepiece", "character")
    return pairs.assemble(
        splits, config, batch_size, languages=languages, merges=merges, bleu_tokenize="13a" if plain else "none"
    )


LETTERS = " abcdefghijklmnopqrstuvwxyz"
"""The characters of The Time Machine."""


def time_machine(path: str = "") -> str:
    """Return the text of The Time Machine (H. G. Wells 1898), from timemachine.txt at `path`, or downloaded."""
    return "\n".join(read_corpus("time_machine/d2l", path)["train"]["text"])


def load_time_machine(config: settings.TimeMachine) -> Windows:
    """Load The Time Machine as characters: a-z and space, the text of d2l's chapters 9 and 10.

    As in d2l everything that is not a letter becomes a space, letters are lower-cased, and the vocabulary is the
    27 characters and an unknown one. Windows overlap: window i reads characters i * stride ... and predicts those
    one later. Validation windows start where the training windows stop to start; the first of them still overlap
    the last training window's text.
    """
    vocabulary, tokenizer = Vocabulary(LETTERS, unk=UNK), tokenizers.letters()
    text = np.array(vocabulary.encode(tokenizer.tokens(time_machine(config.path))), np.int32)
    capacity = (len(text) - config.sequence_length - 1) // config.stride + 1
    if config.train_windows + config.valid_windows > capacity:
        raise InputError(
            f"the text's {len(text)} characters fit at most {max(capacity, 0)} windows of {config.sequence_length} + 1 "
            f"at stride {config.stride}; got {config.train_windows} + {config.valid_windows}: change "
            "--data.train-windows or --data.sequence-length"
        )
    cut = lambda first, count: cut_windows(text, first, count, config.sequence_length, config.stride)
    facts = {
        "characters": len(text),
        "vocabulary": len(vocabulary),
        "train_windows": config.train_windows,
        "valid_windows": config.valid_windows,
        "fingerprint": data_summary.fingerprint([text]),
    }
    held_out = {"valid": cut(config.train_windows, config.valid_windows)}
    return Windows(cut(0, config.train_windows), held_out, vocabulary, tokenizer, facts)


CHARACTERS, DISTINCT = 1_115_394, 65
"""Sizes of the published text of Shakespeare."""
TRAINED_SHARE = 0.9


def shakespeare(path: str = "") -> str:
    """Return tiny Shakespeare, 40,000 lines of the plays (Karpathy 2015, char-rnn), from input.txt at `path`, or
    downloaded."""
    return read_corpus("shakespeare/karpathy", path)["train"]["text"][0]


def count_windows(characters: int, options: settings.Shakespeare) -> dict[str, int]:
    """Return the number of windows of each split for a text of `characters`; InputError if a split has none."""
    border = int(TRAINED_SHARE * characters)
    spans = {"train": (border, options.stride), "valid": (characters - border, options.sequence_length)}
    windows = {name: (length - options.sequence_length - 1) // stride + 1 for name, (length, stride) in spans.items()}
    if min(windows.values()) < 1:
        raise InputError(
            f"--data.sequence-length must be less than a tenth of the text, {characters - border} characters"
        )
    return windows


def load_shakespeare(options: settings.Shakespeare) -> Windows:
    """Load tiny Shakespeare, character by character.

    The first nine tenths train and the last tenth validates, as in nanoGPT; validation windows follow one another, so
    that each of its characters but the first is predicted once.
    """
    text = shakespeare(options.path)
    count, border, steps = count_windows(len(text), options), int(TRAINED_SHARE * len(text)), options.sequence_length
    vocabulary = Vocabulary(sorted(set(text)), unk=UNK)
    coded = np.array(vocabulary.encode(text), np.int32)
    return Windows(
        cut_windows(coded[:border], 0, count["train"], steps, options.stride),
        {"valid": cut_windows(coded[border:], 0, count["valid"], steps, steps)},
        vocabulary,
        tokenizers.character(),
        {
            "characters": len(text),
            "train_characters": border,
            "vocabulary": len(vocabulary),
            "fingerprint": data_summary.fingerprint([text]),
        },
        beginnings=("ROMEO:\n", "First Citizen:\n"),
        sampling=settings.Sampling(length=max(steps - 16, 1), temperature=0.8),  # learned positions end with a window
    )
