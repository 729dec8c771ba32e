"""The vocabulary linter, .ci/vocabulary.py: which words it reports, and where it does not search."""

import importlib.util
from pathlib import Path

PATH = Path(__file__).parents[1] / ".ci/vocabulary.py"
spec = importlib.util.spec_from_file_location("vocabulary", PATH)
vocabulary = importlib.util.module_from_spec(spec)
spec.loader.exec_module(vocabulary)

BAD = '''"""One door to
all rooms."""

door = ["room", "a door"]  # nobody enters
how = "the run goes on"
option(3, help=f"what {door} is looked at")
raise InputError("a place or room for "
                 "one more")


def room():
    """The row of a matrix; `door` is a name.

    >>> room()
    """
'''


def test_reports_docstrings_comments_and_messages_but_neither_names_nor_code():
    found = vocabulary.problems("bad.py", BAD, vocabulary.discouraged())
    words = [(line.split(":")[1], line.split('"')[1]) for line in found]
    assert words == [
        ("1", "door"),
        ("2", "rooms"),
        ("4", "nobody"),
        ("5", "goes on"),
        ("6", "looked at"),
        ("7", "room"),
    ]


def test_skips_code_and_its_own_table_in_pages():
    page = "One door.\n```\ndoor\n```\n## Discouraged words\n| door |\n## Next\nA `door`, [rooms](door.md)\n"
    found = vocabulary.problems("docs/page.md", page, vocabulary.discouraged())
    assert [line.partition(" (")[0] for line in found] == ['docs/page.md:1: "door"', 'docs/page.md:8: "rooms"']


def test_every_word_of_the_table_is_a_pattern_with_a_replacement():
    words = vocabulary.discouraged()
    assert len(words) > 15 and all(say for _, say in words)
    assert any(pattern.fullmatch("looking at") for pattern, _ in words)


def test_the_repository_has_none(capsys):
    assert vocabulary.main() == 0, capsys.readouterr().out
