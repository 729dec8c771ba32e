"""The commands of recorded runs: writing them for the record, and reading them again."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from attention_jax.config import Config, earlier_names, option_name


def command_words(run: Mapping) -> list[str]:
    """Return a run's command from the experiment's name on, without its variant and its output directory.

    Commands recorded before 2026-11-24 do not quote a variant that has spaces.

    >>> command_words({"command": "python launch.py reproduce x --variant a b --seeds 1"})
    ['x', '--seeds', '1']
    """
    return shlex.split(re.sub(r" --(variant|out) .*?(?= --|$)", "", run["command"]))[3:]


def current_names(config: Config, words: Sequence[str]) -> list[str]:
    """Return the words of a recorded command, with the current names of options that have been renamed since."""
    present = {option_name(old): option_name(new) for old, new in earlier_names(config).items()}
    return [present.get(word, word) for word in words]


def command_of(words: Sequence[str]) -> str:
    """Return the command `launch.py words` for the record."""
    return shlex.join(["python", "launch.py", *strip_directories(words)])


def strip_directories(words: Sequence[str]) -> list[str]:
    """Return the words of a command for the record: files without their directories, and no output directory.

    >>> strip_directories(["--data.path=/home/date.txt.gz", "--root", "/tmp", "--data.source-file", "/a/x.de,/a/y.de"])
    ['--data.path', 'date.txt.gz', '--data.source-file', 'x.de,y.de']
    >>> strip_directories(["--variant", "d_k / 4"])
    ['--variant', 'd_k / 4']
    """
    split = [token for word in words for token in (word.split("=", 1) if word.startswith("--") else [word])]
    pairs = [pair for pair in zip(split, ["", *split]) if not {"--root", "--out"} & set(pair)]
    name = lambda word: ",".join(Path(path).name if "/" in path else path for path in word.split(","))
    return [word if previous == "--variant" else name(word) for word, previous in pairs]
