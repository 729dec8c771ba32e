"""Report everyday words used as terms, which docs/glossary.md lists with what to write instead; exit code 1 if found.

Checked are the pages, and in code all comments and all strings of several words: docstrings, help, messages. Code
blocks and text in backquotes are left out.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GENERATED = ("docs/results.md", "docs/replication.md")
"""Written from claims, whose texts are frozen."""


def discouraged() -> list[tuple[re.Pattern, str]]:
    """The (pattern, replacement) pairs of the glossary's table; a row may have several patterns."""
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    table = text.partition("## Discouraged words")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    words = [(word.replace("\\|", "|"), say) for words, say in rows for word in re.findall("`(.+?)`", words)]
    return [(re.compile(rf"\b(?:{word})\b", re.I), say) for word, say in words]


def page_lines(text: str) -> Iterator[tuple[int, str]]:
    """The (number, text) of the lines of a Markdown page outside code blocks and the table of discouraged words."""
    code = listed = False
    for number, line in enumerate(text.splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        listed = line == "## Discouraged words" or (listed and not line.startswith("## "))
        if not (code or listed):
            yield number, line


def code_lines(source: str) -> Iterator[tuple[int, str]]:
    """The (number, text) of all prose in a Python file: comments, and strings of several words, such as docstrings."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") >= 2:
            lines = enumerate(node.value.splitlines(), node.lineno)
            yield from ((number, line) for number, line in lines if ">>>" not in line)


def problems(path: str, text: str, words: list[tuple[re.Pattern, str]]) -> list[str]:
    """One line for each discouraged word in a file."""
    lines = code_lines(text) if path.endswith(".py") else page_lines(text)
    found = set()
    for number, line in lines:
        prose = re.sub(r"`[^`]*`|https?://\S+|\]\([^)]*\)", " ", line)
        found |= {(number, match.group(), say) for word, say in words for match in word.finditer(prose)}
    return [f'{path}:{number}: "{word}" (say: {say})' for number, word, say in sorted(found)]


def files() -> list[str]:
    """The paths of all checked files, from the root of the repository."""
    code = ("*.py", "attention_jax/**/*.py", "benchmarks/*.py", "experiments/*.py", "docs/notebooks/*.py")
    patterns = ("*.md", "docs/*.md", "tests/*.md", *code)
    paths = sorted({path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(pattern)})
    return [path for path in paths if path not in GENERATED]


def main() -> int:
    words = discouraged()
    found = [line for path in files() for line in problems(path, (ROOT / path).read_text(encoding="utf-8"), words)]
    print("\n".join([*found, f"{len(found)} discouraged words; see docs/glossary.md"]) if found else "vocabulary: ok")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
