import gzip
import zipfile

import pytest

from attention_jax.data import text_files
from attention_jax.data.pairs import Texts
from attention_jax.errors import InputError


def write(path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def test_packed_and_windows_files_are_equal(tmp_path):
    content = "Grüße\nzwei\n".encode()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("deep/fra.txt", content)
        archive.writestr("_about.txt", "not this")
    assert text_files.read_bytes(str(tmp_path / "a.zip"), "file", "fra.txt") == content
    windows = b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n")
    for name, data in (("a", content), ("b.gz", gzip.compress(content)), ("c", windows), ("d", content[:-1])):
        assert text_files.read_lines(write(tmp_path / name, data), "file") == ["Grüße", "zwei"]
    with pytest.raises(InputError, match="holds no eng.txt; it holds deep/fra.txt, _about.txt"):
        text_files.read_bytes(str(tmp_path / "a.zip"), "file", "eng.txt")


def test_only_newlines_end_lines(tmp_path):
    """str.splitlines would also split at form feeds, U+0085 and U+2028, and put two files out of step."""
    path = write(tmp_path / "a", "a\u2028b\x0cc\x85\nd\n".encode())
    assert text_files.read_lines(path, "file") == ["a\u2028b\x0cc\x85", "d"]


@pytest.mark.parametrize(
    "source, target, complaint",
    [
        (b"a\nb\n", b"A\n", r"equally many lines, but .*source has 2 and .*target 1"),
        (b"a\n\nc\n", b"A\nB\nC\n", "source line 2 is empty"),
        (b"a\nb\nc\n", b"A\nB\n  \n", "target line 3 is empty"),
        (b"a\nb\xfc\n", b"A\nB\n", r"source line 2: not valid UTF-8 \(byte 0xfc at 2\)"),
        (b"", b"A\n", "source is empty"),
        (None, b"A\n", "no source file at .*source"),
    ],
)
def test_bad_parallel_files(tmp_path, source, target, complaint):
    if source is not None:
        write(tmp_path / "source", source)
    write(tmp_path / "target", target)
    with pytest.raises(InputError, match=complaint) as caught:
        text_files.read_parallel(str(tmp_path / "source"), str(tmp_path / "target"))
    assert "\n" not in str(caught.value)


def test_columns(tmp_path):
    assert text_files.read_columns(b"Go.\tVa !\tCC-BY\nHi.\tSalut !\n", "x") == Texts(
        ["Go.", "Hi."], ["Va !", "Salut !"]
    )
    with pytest.raises(InputError, match="x line 2: expected `source TAB target`, got 'Hi.'"):
        text_files.read_columns(b"Go.\tVa\nHi.\n", "x")


def test_damaged_archives_are_one_line(tmp_path):
    with pytest.raises(InputError, match="cannot read .*a.zip"):
        text_files.read_bytes(write(tmp_path / "a.zip", b"PK no zip"), "file", "fra.txt")
    with pytest.raises(InputError, match="cannot read .*a.gz"):
        text_files.read_lines(write(tmp_path / "a.gz", b"no gzip"), "file")
