"""Public corpora of texts: one table of where they are published, with digests, and how they are read.

A corpus is read from its files at `path`, or downloaded and prepared by TFDS once.
"""

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from attention_jax import config as settings
from attention_jax.data import data_summary, pairs, tokenizers
from attention_jax.data.cache import download
from attention_jax.data.pairs import PairData, Pairs, Texts, concatenate_pairs, take_rows
from attention_jax.data.splits import split_by_source, text_digests, to_nfc
from attention_jax.data.text_files import PACKED, decode_lines, existing_path, read_bytes, read_lines, read_rows
from attention_jax.data.text_windows import Windows, cut_windows
from attention_jax.data.vocabulary import UNK, Vocabulary
from attention_jax.errors import InputError
from attention_jax.files import data_home

Rows = Iterable[tuple[str, ...]]
"""Texts, one for each feature"""


class Published(NamedTuple):
    """A public corpus."""

    source: dict[str, tuple[str, str]]
    """{file: (address, digest)}"""
    splits: dict[str, tuple[tuple[str, ...], ...]]
    """{split: its files, each by the names that it may have}"""
    read: Callable[[Sequence[str]], Rows]
    """(paths of the files of a split) -> rows"""
    features: tuple[str, ...] = ("source", "target")
    homepage: str = ""


def read_pairs(paths: Sequence[str]) -> Rows:
    """Read sentence pairs from two files with one sentence per line, or a file of two columns."""
    path = paths[0] if len(paths) == 1 else tuple(paths)
    return (row for _, row in read_rows(path, ("source", "target"), sentences=True, member="fra.txt"))


def undo_bpe(paths: Sequence[str]) -> Rows:
    """Read sentence pairs whose words were split by subword-nmt: the words."""
    return (tuple(text.replace("@@ ", "") for text in row) for row in read_pairs(paths))


def read_text(paths: Sequence[str]) -> Rows:
    """Read a text, which is one row, with its newlines."""
    [path] = paths
    content = read_bytes(path, "text")
    yield ("\n".join(decode_lines(content, path)) + "\n" * content.endswith(b"\n"),)


def multi30k(form: str, languages: tuple[str, str]) -> Published:
    """Multi30k (Elliott et al. 2016, 2017): 29,000 image captions with their translations, WMT multimodal task 1.

    Three forms: "raw" and "tok" (lower-cased, normalized, Moses-tokenized) as in github.com/multi30k/dataset, "bpe"
    (tok with joint BPE of 10,000 merges, which is undone: texts consist of words) as in github.com/LividWo/Revisit-MMT
    (Wu et al. 2021, ACL). test = test_2016_flickr (1,000), test_2017 = test_2017_flickr (1,000). For research use.
    """
    names = {
        split: tuple(f"{MULTI30K_FOLDERS[form]}/{pattern.format(language)}" for language in languages)
        for split, pattern in MULTI30K_FILES[form].items()
    }
    files = [*itertools.chain.from_iterable(names.values()), *(["bpe/en-de/code"] if form == "bpe" else [])]
    files = [f"{name}.gz" if form == "raw" else name for name in files]
    address = lambda name: REVISIT + os.path.basename(name) if form == "bpe" else DATASET + name
    return Published(
        source={name: (address(name), "sha256:" + MULTI30K_SHA256[name]) for name in files},
        splits={split: tuple((name, os.path.basename(name)) for name in pair) for split, pair in names.items()},
        read=undo_bpe if form == "bpe" else read_pairs,
        homepage="https://github.com/multi30k/dataset",
    )


DATASET = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/"
REVISIT = "https://raw.githubusercontent.com/LividWo/Revisit-MMT/master/data/multi30k-en-de/"
LANGUAGES = ("en", "de", "fr")
MULTI30K_FOLDERS = {"raw": "raw", "tok": "tok", "bpe": "bpe/en-de"}
MULTI30K_FILES = {
    "raw": {"train": "train.{}", "valid": "val.{}", "test": "test_2016_flickr.{}", "test_2017": "test_2017_flickr.{}"},
    "tok": {
        "train": "train.lc.norm.tok.{}",
        "valid": "val.lc.norm.tok.{}",
        "test": "test_2016_flickr.lc.norm.tok.{}",
        "test_2017": "test_2017_flickr.lc.norm.tok.{}",
    },
    "bpe": {"train": "train.{}", "valid": "valid.{}", "test": "test.2016.{}", "test_2017": "test.2017.{}"},
}
MULTI30K_SHA256 = {  # of the published files, which are gzipped in raw/ and plain elsewhere
    "bpe/en-de/code": "5b545f318e49f24367c7399019c9aeb5e3720b6379a08f887c2792af71c37f2a",
    "bpe/en-de/test.2016.de": "375c20d50f4c486149a78dfcfb161a430a04ddabe2b7d150f0c7811dc455ac60",
    "bpe/en-de/test.2016.en": "13b5fe3f92f78c54446d66afcaaa0a00a33ab653a8411f16812c9c5ca3795d6d",
    "bpe/en-de/test.2017.de": "9deefbe5705b60c3b5a790146e232b411a0da0420fd194ed6f6ad3a2674340a0",
    "bpe/en-de/test.2017.en": "5252390a58d57bce8d6a69a973e4908e98c7b70d3fc7ccc9c3963747ae8b177d",
    "bpe/en-de/train.de": "b2c74def7ec129f7ea7023a51501c77174c377ef06c6ccc2f031adcfb5cfadbd",
    "bpe/en-de/train.en": "0ffe3e3bac16e6aa33ef0dd6a7dca81587479b0d18dff0db2a92ac3f32b00c86",
    "bpe/en-de/valid.de": "eeb95680d6a06eafb13e3494eed9f9fa99783b892f4a3c72dd36e7ce2e000b68",
    "bpe/en-de/valid.en": "193d0d18fef5d1bc9d1cddafa13a644de3c5d6a24b45ac44476dcc5e96bfac6e",
    "raw/test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "raw/test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "raw/test_2016_flickr.fr.gz": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
    "raw/test_2017_flickr.de.gz": "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee",
    "raw/test_2017_flickr.en.gz": "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074",
    "raw/test_2017_flickr.fr.gz": "3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496",
    "raw/train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "raw/train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "raw/train.fr.gz": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    "raw/val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "raw/val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "raw/val.fr.gz": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
    "tok/test_2016_flickr.lc.norm.tok.de": "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
    "tok/test_2016_flickr.lc.norm.tok.en": "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
    "tok/test_2016_flickr.lc.norm.tok.fr": "1463bd5960f9bfe098ec3cd752d3df0c49c84dc646fb518964a29232658cd836",
    "tok/test_2017_flickr.lc.norm.tok.de": "02067e4a9402786a4fcb8c1b6f4307e4a5073ced64800abead5273b54f5f31f6",
    "tok/test_2017_flickr.lc.norm.tok.en": "c9d1dfd7a26add989382e534af235af9f0f658b2a30e7eb0efdaf142496ee54f",
    "tok/test_2017_flickr.lc.norm.tok.fr": "c0583117a47b31e8a6c6a97cfe8de153e462074668f4e994764fcc80b21d33b4",
    "tok/train.lc.norm.tok.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
    "tok/train.lc.norm.tok.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
    "tok/train.lc.norm.tok.fr": "8fa41bb718412bcb7c5dfa58603842810a01543eae86a51279f9886b901266e1",
    "tok/val.lc.norm.tok.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
    "tok/val.lc.norm.tok.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
    "tok/val.lc.norm.tok.fr": "b303e301aa21fe7822a846b2b3fb2d5a1121ec807cd5b1d006fb7b2b5507168a",
}
PUBLISHED = {
    "fra_eng/d2l": Published(
        {
            "fra-eng.zip": (
                "http://d2l-data.s3-accelerate.amazonaws.com/fra-eng.zip",
                "sha1:94646ad1522d915e7b0f9296181140edcf86a4f5",
            )
        },
        {"train": (("fra.txt", "fra-eng.zip"),)},
        read_pairs,
        homepage="https://www.manythings.org/anki/",
    ),
    "time_machine/d2l": Published(
        {
            "timemachine.txt": (
                "http://d2l-data.s3-accelerate.amazonaws.com/timemachine.txt",
                "sha1:090b5e7e70c295757f55df93cb0a180b9691891a",
            )
        },
        {"train": (("timemachine.txt",),)},
        lambda paths: ((line,) for line in read_lines(*paths, "text")),
        features=("text",),
        homepage="https://www.gutenberg.org/ebooks/35",
    ),
    "shakespeare/karpathy": Published(
        {
            "tinyshakespeare.txt": (
                "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
                "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            )
        },
        {"train": (("input.txt", "tinyshakespeare.txt"),)},
        read_text,
        features=("text",),
        homepage="https://github.com/karpathy/char-rnn",
    ),
    **{
        f"multi30k/{form}_{source}_{target}": multi30k(form, (source, target))
        for form in MULTI30K_FILES
        for source in LANGUAGES
        for target in LANGUAGES
        if source != target and not (form == "bpe" and "fr" in (source, target))
    },
}
"""{name of a corpus in TFDS_DATA_DIR: where it comes from}"""


def read_corpus(name: str, path: str = "") -> dict[str, dict[str, list[str]]]:
    """Return the rows of a corpus, {split: {feature: texts}}, from its files at `path`, or downloaded."""
    corpus = PUBLISHED[name]
    if not path:
        from attention_jax.data import builders  # TFDS takes seconds to import: only where it is needed

        builder = builders.prepare_builder(builders.text_builder(name, corpus), name.partition("/")[2])
        return builders.read_rows(builder, corpus.splits)
    rows = {split: corpus.read([locate_file(path, names) for names in files]) for split, files in corpus.splits.items()}
    return {split: dict(zip(corpus.features, map(list, zip(*texts)))) for split, texts in rows.items()}


def locate_file(path: str, names: Sequence[str]) -> str:
    """Return the path of a file, which is at `path`, or has one of these names in the directory `path`; possibly
    packed."""
    if not os.path.isdir(path):
        return existing_path(path, "file or directory")
    for name, suffix in itertools.product(names, ("", *PACKED)):
        if os.path.isfile(file := os.path.join(path, name + suffix)):
            return file
    raise InputError(f"{path} holds no {' nor '.join(names)}: give the directory that has it, or leave --data.path out")


def download_files(name: str) -> str:
    """Download the files of a corpus, unless they are there; return their directory."""
    folder = "multi30k" if name.startswith("multi30k") else ""
    directory = os.path.join(data_home(), "downloads", folder)
    for file, (address, digest) in PUBLISHED[name].source.items():
        download(address, os.path.join(directory, file), digest)
    return directory


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
        keys = [text_digests(to_nfc(" ".join(row)) for row in tokenizers.words().split(side)) for side in texts]
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
