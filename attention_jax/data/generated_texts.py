"""Texts that are generated from a seed: dates and sums as characters of a fixed width, SCAN, rows of numbers.

Dates and sums are in the format of "Deep Learning from Scratch 2" (Saito 2018), chapters 7 and 8: one line per pair, a
source padded with spaces to one length, then "_" and a target of one length.
"""

import datetime
import os
import string
from collections.abc import Iterator

import numpy as np

from attention_jax import config as settings
from attention_jax.data import data_summary, pairs, text_files, tokenizers
from attention_jax.data.pairs import PairData, Pairs, Texts
from attention_jax.data.splits import occurs_in
from attention_jax.data.vocabulary import Vocabulary
from attention_jax.errors import InputError

START = "_"
SPLIT_SEED = 1984
"""The book's seed: with its file, train and test are exactly the book's."""


def read_fixed_width(path: str, kind: str) -> Texts:
    """Read a published file, plain or packed; InputError with the line number for a malformed line."""
    if not os.path.isfile(path):
        raise InputError(
            f"no {kind} file at {path}; give the path of a published file, or leave the option out to generate the data"
        )
    lines = text_files.read_lines(path, f"{kind} file") if os.path.getsize(path) else []
    if len(lines) < 2:
        raise InputError(f"{path} has {len(lines)} lines; a {kind} file has at least 2, one pair a line")
    sources, targets = [], []
    for number, line in enumerate(lines, start=1):
        source, start, target = line.partition(START)
        if not (start and source.strip() and target.strip()):
            raise InputError(f"{path} line {number}: expected `source_target`, got {line[:60]!r}")
        if sources and (len(source), len(target)) != (len(sources[0]), len(targets[0])):
            raise InputError(
                f"{path} line {number}: expected {len(sources[0])} characters, {START!r} and {len(targets[0])} more "
                f"as in line 1, got {len(source)} and {len(target)}"
            )
        sources.append(source)
        targets.append(target)
    return Texts(sources, targets)


def split_by_book(texts: Texts) -> dict[str, Texts]:
    """Split 9:1 into train and test, permuted as in the book (NumPy's legacy generator, seed 1984)."""
    if len(texts.source) < 10:
        raise InputError(f"at least 10 pairs are needed, so that one is for testing; got {len(texts.source)}")
    order = np.arange(len(texts.source))
    np.random.RandomState(SPLIT_SEED).shuffle(order)
    train_rows = len(order) - len(order) // 10
    return {"train": pairs.take_rows(texts, order[:train_rows]), "test": pairs.take_rows(texts, order[train_rows:])}


def with_validation(splits: dict[str, Texts], count: int) -> dict[str, Texts]:
    """Move the last `count` training pairs to the split "valid"; 0 changes nothing.

    Raises InputError unless some pairs are left to train on.

    >>> with_validation({"train": Texts(list("abc"), list("xyz")), "test": Texts(["d"], ["w"])}, 1)["valid"]
    Texts(source=['c'], target=['z'])
    """
    train = splits["train"]
    size = len(train.source) - count
    if size < 1:
        raise InputError(
            f"--data.validation must be less than the number of training pairs, {len(train.source)}; got {count}"
        )
    if not count:
        return splits
    begin, end = (Texts(*(side[rows] for side in train)) for rows in (slice(size), slice(size, None)))
    return {"train": begin, "valid": end, "test": splits["test"]}


def _characters(texts: list[str], vocabulary: Vocabulary, start: str = "") -> np.ndarray:
    """Encode texts, each behind `start`, as [N, width] int32."""
    return np.array([vocabulary.encode(start + text) for text in texts], np.int32)


def assemble_characters(splits: dict[str, Texts], alphabet: str, reverse_source: bool, batch_size: int) -> PairData:
    """The dataset: one character vocabulary for both sides, bos = "_", no eos; spaces are ordinary
    characters, so nothing is padding.

    The vocabulary has the characters of `alphabet` and all others that occur.
    """
    characters = set("".join(data_summary.contents(splits)))
    vocabulary = Vocabulary(sorted(characters | set(alphabet) | {START}), bos=START)
    step = -1 if reverse_source else 1
    pairs = {}
    for name, texts in splits.items():
        count = len(texts.source)
        source, target = _characters(texts.source, vocabulary)[:, ::step], _characters(texts.target, vocabulary, START)
        pairs[name] = Pairs(
            np.ascontiguousarray(source),
            np.full(count, source.shape[1], np.int32),
            target,
            np.full(count, target.shape[1] - 1, np.int32),
        )
    held_out = {name: split_pairs for name, split_pairs in pairs.items() if name != "train"}
    in_train = {name: occurs_in(splits[name].source, splits["train"].source) for name in held_out}
    width = pairs["train"].source.shape[1]

    facts = {f"{name}_pairs": len(split_pairs.source) for name, split_pairs in splits.items()}
    facts |= {
        "vocabulary": len(vocabulary),
        "test_inputs_also_in_train": int(in_train["test"].sum()),
        "share_of_test_inputs_also_in_train": round(float(in_train["test"].mean()), 4),
        "fingerprint": data_summary.fingerprint(data_summary.contents(splits)),
    }
    return PairData(
        train=(pairs["train"],),
        batch_sizes=(batch_size,),
        held_out=held_out,
        texts=splits,
        seen=in_train,
        source_vocabulary=vocabulary,
        target_vocabulary=vocabulary,
        source_tokenizer=tokenizers.fixed_width_tokenizer(width, step),
        target_tokenizer=tokenizers.stripping_tokenizer(),
        facts=facts,
    )


FORMATS = ("short", "medium", "long", "full")
FIRST_DATE, LAST_DATE = datetime.date(1970, 1, 1), datetime.date(2017, 7, 24)
DATE_WIDTH = 29
DATE_ALPHABET = " ,-/0123456789ABCDEFGHIJLMNOPRSTUVWY_abcdefghijlmnoprstuvwy"


def generate_dates(examples: int, seed: int = 1984) -> Texts:
    """Generate `examples` date conversions with Babel, deterministically."""
    from babel.dates import format_date

    rng = np.random.default_rng(seed)
    days = rng.integers(0, (LAST_DATE - FIRST_DATE).days + 1, examples)
    formats = rng.integers(0, len(FORMATS), examples)
    cases = rng.choice(3, examples, p=[0.5, 0.25, 0.25])
    change = (str, str.lower, str.upper)
    sources, targets = [], []
    for day, style, case in zip(days.tolist(), formats.tolist(), cases.tolist()):
        date = FIRST_DATE + datetime.timedelta(days=day)
        sources.append(change[case](format_date(date, FORMATS[style], locale="en_US")).ljust(DATE_WIDTH))
        targets.append(date.isoformat())
    return Texts(sources, targets)


def load_dates(config: settings.Dates, batch_size: int = 128) -> PairData:
    """Load date conversions, "TUESDAY, SEPTEMBER 25, 1984" -> "1984-09-25", the task of the book's chapter 8: the
    published file at `config.path`, or generated pairs.

    Its 50,000 lines have four formats in equal shares - "9/25/84", "Sep 25, 1984", "September 25, 1984",
    "Tuesday, September 25, 1984" (the short, medium, long and full format of Unicode CLDR, English) -, half of the
    worded ones as they are, a quarter in lower and a quarter in upper case, and uniform days from 1970-01-01 to
    2017-07-24 (counted on the published file). Days are sampled with replacement, so about 28 % of the test inputs
    occur in train as well; `PairData.seen` marks them.
    """
    if config.path:
        texts = read_fixed_width(config.path, "date")
    else:
        texts = generate_dates(check_examples(config.examples, 10, 10_000_000))
    splits = with_validation(split_by_book(texts), config.validation)
    return assemble_characters(splits, DATE_ALPHABET, config.reverse_source, batch_size)


SUM_WIDTH, TARGET_WIDTH = 7, 4
SUM_ALPHABET = " +_" + string.digits
MOST_SUMS = 200_000
"""The maximum number of examples: there are 500,500 different sums, and rejection sampling of nearly all is slow."""


def generate_sums(examples: int, seed: int = 1984) -> Texts:
    """Generate `examples` different additions, deterministically."""
    rng = np.random.default_rng(seed)
    used, sources, targets = set(), [], []
    while len(sources) < examples:
        digits = rng.integers(1, 4, (examples, 2))
        for a, b in rng.integers(0, 10**digits).tolist():
            key = (min(a, b), max(a, b))
            if key not in used and len(sources) < examples:
                used.add(key)
                sources.append(f"{a}+{b}".ljust(SUM_WIDTH))
                targets.append(str(a + b).ljust(TARGET_WIDTH))
    return Texts(sources, targets)


def load_addition(config: settings.Addition, batch_size: int = 128) -> PairData:
    """Load sums as text, "16+75  " -> "_91  ", the task of the book's chapter 7 (after Zaremba and Sutskever 2014,
    "Learning to execute"): the published file at `config.path`, or generated pairs.

    Each operand is 1, 2 or 3 random digits, read as a number ("007" is 7). A sum occurs once, whichever operand comes
    first (the rule of Keras's addition_rnn example, which the book's file follows: short sums are used up early, and
    its last lines have two and three digits). So no test input occurs in train, not even swapped.
    """
    if config.path:
        texts = read_fixed_width(config.path, "addition")
    else:
        texts = generate_sums(check_examples(config.examples, 10, MOST_SUMS))
    return assemble_characters(split_by_book(texts), SUM_ALPHABET, config.reverse_source, batch_size)


def check_examples(examples: int, least: int, most: int) -> int:
    """Return the number of generated examples; InputError if it is out of bounds."""
    if not least <= examples <= most:
        raise InputError(f"--data.examples must be between {least} and {most}, got {examples}")
    return examples


NUMBERS, TRAIN_LENGTH, EXTRA_LENGTH, HELD_OUT = 50, 25, 5, 1_000


def generate_reversals(examples: int, seed: int = 42) -> dict[str, Texts]:
    """The three splits; a function of its arguments."""
    draws = np.random.RandomState(seed)
    splits = {}
    for split, count, longest in zip(
        ("train", "valid", "test"), (examples, HELD_OUT, HELD_OUT), (TRAIN_LENGTH, *[TRAIN_LENGTH + EXTRA_LENGTH] * 2)
    ):
        rows = [list(map(str, draws.randint(0, NUMBERS, draws.randint(1, longest + 1)))) for _ in range(count)]
        splits[split] = Texts([" ".join(row) for row in rows], [" ".join(row[::-1]) for row in rows])
    return splits


def load_reverse(config: settings.Reverse, batch_size: int = 128) -> PairData:
    """Load Joey NMT's toy task: a row of numbers below 50, to be written backwards. Train rows have 1 to 25 numbers,
    valid and test rows 1 to 30.

    The samples are those of Joey's scripts/generate_reverse_task.py with its seed (NumPy's legacy generator, 42), in
    its order: train, dev, test; so the default is its data.
    """
    splits = generate_reversals(check_examples(config.examples, 1, 10_000_000))
    return pairs.assemble(splits, config, batch_size, bleu_tokenize="none")


VERBS, SIDES = ("walk", "look", "run", "jump", "turn"), ("left", "right")
VALIDATE = 1_000
"""Commands that validate."""
TESTED = 0.2
"""The test fraction of a random split."""

Meaning = tuple[str, list[str]]
"""Words and actions."""


def phrases() -> Iterator[Meaning]:
    """Return {phrase: actions}, the commands without repetition.

    >>> dict(phrases())["jump opposite left"]
    ['I_TURN_LEFT', 'I_TURN_LEFT', 'I_JUMP']
    """
    for verb in VERBS:
        act = [] if verb == "turn" else [f"I_{verb.upper()}"]
        if act:
            yield verb, act
        for side in SIDES:
            turn = [f"I_TURN_{side.upper()}"]
            yield f"{verb} {side}", turn + act
            yield f"{verb} opposite {side}", 2 * turn + act
            yield f"{verb} around {side}", 4 * (turn + act)


def sentences() -> Iterator[Meaning]:
    """Return {sentence: actions}: phrases done once, twice or three times."""
    for words, actions in phrases():
        yield words, actions
        yield f"{words} twice", 2 * actions
        yield f"{words} thrice", 3 * actions


def commands() -> Iterator[Meaning]:
    """All commands.

    >>> dict(commands())["jump after walk left"]
    ['I_TURN_LEFT', 'I_WALK', 'I_JUMP']
    """
    all_sentences = list(sentences())
    yield from all_sentences
    for first, first_actions in all_sentences:
        for second, second_actions in all_sentences:
            yield f"{first} and {second}", first_actions + second_actions
            yield f"{first} after {second}", second_actions + first_actions


def split_commands(length: np.ndarray, cutoff: int, second_cutoff: int = 0) -> dict[str, np.ndarray]:
    """Return the indices of the commands of each split, for commands of `length` [N] actions.

    Commands longer than `cutoff` are the split "test"; with a `second_cutoff` those of at most that length are
    "valid_longer" and the rest "test_longer". What trains and validates does not depend on `second_cutoff`.

    >>> splits = split_commands(np.array([len(actions) for _, actions in commands()]), cutoff=22)
    >>> {name: len(rows) for name, rows in splits.items()}
    {'train': 15990, 'valid': 1000, 'test': 3920}
    """
    order = np.random.default_rng(0).permutation(len(length))
    if cutoff:
        test, remaining = order[length[order] > cutoff], order[length[order] <= cutoff]
    else:
        test, remaining = np.split(order, [round(TESTED * len(order))])
    if len(remaining) <= VALIDATE or not len(test):
        raise InputError(f"--data.cutoff must be 0, or 4 to 47 actions, so that some train and some test; got {cutoff}")
    splits = {"train": remaining[VALIDATE:], "valid": remaining[:VALIDATE]}
    if not second_cutoff:
        return splits | {"test": test}
    longer = length[test] > second_cutoff
    if not cutoff or longer.all() or not longer.any():
        raise InputError(
            "--data.second-cutoff divides the commands that are longer than --data.cutoff: it must be 0, or above "
            f"that and at most 47; got {second_cutoff} with --data.cutoff {cutoff}"
        )
    return splits | {"valid_longer": test[~longer], "test_longer": test[longer]}


def load_scan(options: settings.Scan, batch_size: int = 128) -> PairData:
    """Load SCAN (Lake & Baroni 2018, arXiv 1711.00350): 20,910 commands, and the actions that they mean.

        command  ->  sentence | sentence "and" sentence | sentence "after" sentence
        sentence ->  phrase | phrase "twice" | phrase "thrice"
        phrase   ->  verb | verb side | verb "opposite" side | verb "around" side
        verb     ->  "walk" | "look" | "run" | "jump" | "turn"      (no phrase is "turn" alone)
        side     ->  "left" | "right"

    That is figure 6 of the paper, and `phrases`, `sentences` and `commands` are the interpretation of figure 7.
    """
    words, actions = zip(*commands())
    split_rows = split_commands(np.array([len(row) for row in actions]), options.cutoff, options.second_cutoff)
    splits = {
        name: Texts([words[row] for row in rows], [" ".join(actions[row]) for row in rows])
        for name, rows in split_rows.items()
    }
    return pairs.assemble(splits, options, batch_size, bleu_tokenize="none")
