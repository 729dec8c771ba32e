"""The commands of recorded runs: writing them for the record, and reading them again."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from attention_jax.config import Config, earlier_names, option_name


def recorded_words(run: Mapping) -> list[str]:
    """Return a run's command from the experiment's name on, without its variant and its output directory.

    Commands recorded before 2026-11-24 do not quote a variant that has spaces.

    >>> recorded_words({"command": "python launch.py reproduce x --variant a b --seeds 1"})
    ['x', '--seeds', '1']
    """
    return shlex.split(re.sub(r" --(variant|out) .*?(?= --|$)", "", run["command"]))[3:]


def current_names(config: Config, words: Sequence[str]) -> list[str]:
    """Return the words of a recorded command, where options that were renamed since have their current names."""
    present = {option_name(old): option_name(new) for old, new in earlier_names(config).items()}
    return [present.get(word, word) for word in words]


def command_of(words: Sequence[str]) -> str:
    """Return the command `launch.py words` for the record."""
    return shlex.join(["python", "launch.py", *shown(words)])


def shown(words: Sequence[str]) -> list[str]:
    """Return the words of a command for the record: files without their directories, and no output directory.

    >>> shown(["--data.path=/home/me/date.txt.gz", "--root", "/tmp/runs", "--data.source-file", "/a/x.de,/a/y.de"])
    ['--data.path', 'date.txt.gz', '--data.source-file', 'x.de,y.de']
    >>> shown(["--variant", "d_k / 4"])
    ['--variant', 'd_k / 4']
    """
    split = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    kept = [pair for pair in zip(split, ["", *split]) if not {"--root", "--out"} & set(pair)]
    name = lambda word: ",".join(Path(part).name if "/" in part else part for part in word.split(","))
    return [word if before == "--variant" else name(word) for word, before in kept]
