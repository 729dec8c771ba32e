"""Tasks with placeholder data of the right shapes, all zeros, to compile programs for data that are not available.

Sizes are taken from the options and from `facts`, which a run on the data has written to its result.json
(`Task.describe`). The arrays are broadcast scalars and take no memory.
"""

from collections.abc import Iterable

import numpy as np

from attention_jax import config as configs
from attention_jax.data import public_texts
from attention_jax.data.batches import sentences_in_batch
from attention_jax.data.images import ImageData, Split
from attention_jax.data.pairs import PackedPairs, PairData, Pairs
from attention_jax.data.stream import is_streamed, steps_in_call
from attention_jax.data.text_windows import Windows
from attention_jax.data.vocabulary import BOS, EOS, PAD, UNK, Tokenizer, Vocabulary
from attention_jax.errors import InputError
from attention_jax.tasks import Task, build

PUBLISHED = {"fashion_mnist": (60_000, 10_000, 10, 28, 1), "cifar10": (50_000, 10_000, 10, 32, 3)}
"""(training images, test images, classes, pixels of a side, channels)"""


def placeholder_task(config: configs.Config, facts: dict) -> Task:
    """Return the task of a configuration, with its data if they are stored locally, else with placeholders.

    Raises:
      InputError: a size is neither in the options nor in `facts`.
    """
    if config.data.is_local:
        return build(config)
    makers = {
        configs.Images: image_task,
        configs.TextPairs: pair_task,
        configs.TimeMachine: time_machine_task,
        configs.Shakespeare: shakespeare_task,
    }
    make = next(make for kind, make in makers.items() if isinstance(config.data, kind))
    try:
        return make(config, facts)
    except KeyError as error:
        raise InputError(
            f"the data of {config.name} are not stored locally and their {error.args[0]} is not known: "
            f"give their directory (--data.path), or --facts {error.args[0]}=NUMBER"
        ) from error


def read_call(config: configs.Config, arrays: dict, shape: tuple[int, int]) -> tuple[int, int] | None:
    """Return the (steps, examples per step) of a compiled call if the data would be streamed, which may have fewer
    steps than `shape`; None if they would be resident on the devices."""
    data, size = config.data, sum(array.nbytes for array in arrays.values())
    if data.is_local or not is_streamed(data.stream, size):
        return None
    return steps_in_call(size // len(next(iter(arrays.values()))), shape[1], shape[0]), shape[1]


def zeros(*shape: int, dtype=np.int32) -> np.ndarray:
    """Return zeros that take no memory: a broadcast scalar."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def image_task(config: configs.Config, facts: dict) -> Task:
    """Return the task of a published image dataset, or of a folder with the sizes in `facts`."""
    options = config.data
    if options.dataset in PUBLISHED:
        train, test, classes, side, channels = PUBLISHED[options.dataset]
        train = options.examples or train - options.validation
    else:
        train, test, classes = (facts[name] for name in ("train_images", "test_images", "classes"))
        train, side = options.examples or train, options.resize_pixels or options.pixels
        channels = int(facts.get("channels", 3))
    split = lambda rows: Split(zeros(rows, side, side, channels, dtype=np.uint8), zeros(rows))
    held_out = {"test": split(test)} | ({"valid": split(options.validation)} if options.validation else {})
    gray = np.zeros(channels, np.float32)
    normalization = (gray, gray + 1) if options.standardize or options.signed else None
    names = tuple(map(str, range(classes)))
    return build(config, ImageData(split(train), held_out, names, normalization=normalization))


def pair_task(config: configs.Config, facts: dict) -> Task:
    """Return the task of sentence pairs in the buckets of `facts`; held-out pairs have the longest bucket's lengths."""
    options = config.data
    learned = options.vocabulary_size if options.tokenizer == "sentencepiece" else None
    vocabularies = [learned or facts[name] for name in ("source_vocabulary", "target_vocabulary")]
    train = tuple(_pairs(bucket["pairs"], bucket["source"], bucket["target"], options) for bucket in facts["buckets"])
    widths = [max(bucket.source.shape[1], bucket.target.shape[1] - 1) for bucket in train]
    longest = train[int(np.argmax(widths))]
    names = [name.removesuffix("_pairs") for name in facts if name.endswith("_pairs") and isinstance(facts[name], int)]
    held_out = {
        name: _pairs(facts[f"{name}_pairs"], longest.source.shape[1], longest.target.shape[1] - 1, options)
        for name in names
        if name != "train"
    }
    held_out = held_out or {"test": longest}
    if options.packing:
        train, widths = (_pack_pairs(train, options.packing),), [options.packing]
    letters = Tokenizer(list, "".join)
    data = PairData(
        train=train,
        batch_sizes=sentences_in_batch(widths, config.train.batch_size, options.batch_tokens),
        held_out=held_out,
        texts={},
        seen={name: np.zeros(len(pairs.source), bool) for name, pairs in held_out.items()},
        source_vocabulary=_vocabulary(vocabularies[0]),
        target_vocabulary=_vocabulary(vocabularies[1]),
        source_tokenizer=letters,
        target_tokenizer=letters,
        facts=facts,
    )
    return build(config, data)


def _pairs(rows: int, source: int, target: int, options: configs.TextPairs) -> Pairs:
    """Return pairs of one length."""
    source = options.max_length if options.pad_source else source
    target = options.max_length if options.predict_padding else target
    full = lambda width: np.broadcast_to(np.int32(width), (rows,))
    return Pairs(zeros(rows, source), full(source), zeros(rows, target + 1), full(target))


def _pack_pairs(buckets: tuple[Pairs, ...], length: int) -> PackedPairs:
    """Return packed sequences of `length` tokens for the pairs of these buckets."""
    tokens = max(sum(pairs.source.size for pairs in buckets), sum(pairs.target[:, 1:].size for pairs in buckets))
    rows = _pairs(-(-tokens // length), length, length, configs.Corpus())
    return PackedPairs(*rows, zeros(*rows.source.shape), zeros(*rows.source.shape))


def _vocabulary(size: int) -> Vocabulary:
    return Vocabulary(map(str, range(size - 4)), pad=PAD, bos=BOS, eos=EOS, unk=UNK)


def time_machine_task(config: configs.Config, facts: dict) -> Task:
    """Return the language modeling task of The Time Machine."""
    options = config.data
    return _windows(config, facts, (options.train_windows, options.valid_windows), public_texts.LETTERS)


def shakespeare_task(config: configs.Config, facts: dict) -> Task:
    """Return the language modeling task of tiny Shakespeare."""
    counts = public_texts.count_windows(public_texts.CHARACTERS, config.data)
    return _windows(config, facts, counts.values(), map(chr, range(public_texts.DISTINCT)))


def _windows(config: configs.Config, facts: dict, rows: Iterable[int], characters: Iterable[str]):
    train, valid = (zeros(count, config.data.sequence_length + 1) for count in rows)
    vocabulary = Vocabulary(characters, unk=UNK)
    return build(config, Windows(train, {"valid": valid}, vocabulary, Tokenizer(list, "".join), facts))
