"""SCAN (Lake & Baroni 2018, arXiv 1711.00350): 20,910 commands, and the actions that they mean.

    command  ->  sentence | sentence "and" sentence | sentence "after" sentence
    sentence ->  phrase | phrase "twice" | phrase "thrice"
    phrase   ->  verb | verb side | verb "opposite" side | verb "around" side
    verb     ->  "walk" | "look" | "run" | "jump" | "turn"      (no phrase is "turn" alone)
    side     ->  "left" | "right"

That is figure 6 of the paper, and `phrases`, `sentences` and `commands` are the interpretation of figure 7.
"""

from collections.abc import Iterator

import numpy as np

from attention_jax import config as settings
from attention_jax.data import pair_files
from attention_jax.data.pairs import PairData, Texts
from attention_jax.errors import InputError

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


def load(options: settings.Scan, batch_size: int = 128) -> PairData:
    """Return commands and actions in the splits of `options`."""
    words, actions = zip(*commands())
    split_rows = split_commands(np.array([len(row) for row in actions]), options.cutoff, options.second_cutoff)
    splits = {
        name: Texts([words[row] for row in rows], [" ".join(actions[row]) for row in rows])
        for name, rows in split_rows.items()
    }
    return pair_files.assemble(splits, options, batch_size, bleu_tokenize="none")
