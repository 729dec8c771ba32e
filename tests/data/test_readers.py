"""Every reader of lines refuses what is no text, also where damaged lines are left out, and reads packed files."""

import bz2
import gzip
import lzma
from functools import partial

import pytest

from attention_jax.config import TextFile
from attention_jax.data import (
    corpus,
    fixed_width,
    labeled_texts,
    line_index,
    pair_files,
    shakespeare,
    text_files,
    text_streams,
    text_windows,
    tokenizers,
)
from attention_jax.errors import InputError

PAIRS = [f"one {i}\tun {i}" for i in range(12)]


def read_streamed(path: str, damaged: str):
    lines = line_index.index_pairs([(path,)])
    return [lines.read(number) for number in range(lines.ends[-1])]


def texts(path: str, damaged: str):
    return text_windows.read_text_lines(TextFile(text_file=path, on_bad_record=damaged))[0]


def load_streamed_text(path: str, damaged: str):
    return text_streams.load(TextFile(path, stream="always", on_bad_record=damaged, sequence_length=1)).facts


def strict(read):
    return lambda path, damaged: read(path)


READERS = {
    "pairs": (PAIRS, lambda path, damaged: list(zip(*corpus.read_pairs([(path,)], damaged)[0]))),
    "two files": (PAIRS, lambda path, damaged: corpus.read_pairs([(path, path)], damaged)[0]),
    "streamed pairs": (PAIRS, read_streamed),
    "labeled texts": (PAIRS, lambda path, damaged: labeled_texts.read_examples(path, damaged)[0]),
    "plain text": (PAIRS, texts),
    "streamed text": (PAIRS, load_streamed_text),
    "lines to translate": (PAIRS, strict(partial(text_files.read_lines, description="file"))),
    "published pairs": (PAIRS, strict(lambda path: text_files.read_parallel(path, path))),
    "vocabulary": ([f"w{i}" for i in range(12)], strict(pair_files.read_vocabulary)),
    "merges": ([f"a{i} b" for i in range(12)], strict(tokenizers.read_merges)),
    "fixed width": ([f"{i:02d}+1 _{i:02d}" for i in range(12)], strict(partial(fixed_width.read_file, kind="sum"))),
    "shakespeare": (PAIRS, strict(shakespeare.read_text)),
}
"""{reader: (the lines of a file that it reads, the function of (path, "error" or "skip"))}"""
every_reader = pytest.mark.parametrize("reader", READERS)
every_treatment = pytest.mark.parametrize("damaged", ["error", "skip"])


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty cache, of the index of a stream."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))


def read(place, reader: str, content: bytes, damaged: str = "error", name: str = "a"):
    (place / name).write_bytes(content)
    return READERS[reader][1](str(place / name), damaged)


def join_lines(reader: str, end: str = "\n") -> str:
    return "".join(line + end for line in READERS[reader][0])


@every_treatment
@every_reader
@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_other_encodings_are_refused(tmp_path, codec, reader, damaged):
    with pytest.raises(InputError, match=r"UTF-(16|32), not UTF-8.*save it as UTF-8") as error:
        read(tmp_path, reader, join_lines(reader).encode(codec), damaged)
    assert "\n" not in str(error.value)


@every_treatment
@every_reader
def test_nul_byte_is_named_with_line(tmp_path, reader, damaged):
    lines = READERS[reader][0]
    content = "\n".join([*lines[:3], lines[3] + "\0", *lines[4:]]).encode()
    with pytest.raises(InputError, match="line 4 has a NUL byte"):
        read(tmp_path, reader, content, damaged)


@every_treatment
@every_reader
def test_line_ends_of_old_macs_are_refused(tmp_path, reader, damaged):
    for content in (join_lines(reader, "\r"), join_lines(reader, "\r") + READERS[reader][0][0] + "\n"):
        with pytest.raises(InputError, match=r"has 12 carriage returns and \d newlines"):
            read(tmp_path, reader, content.encode(), damaged)


@every_reader
def test_windows_line_ends_are_read(tmp_path, reader):
    plain = read(tmp_path, reader, join_lines(reader).encode(), name="a")
    assert read(tmp_path, reader, join_lines(reader, "\r\n").encode(), name="b") == plain
    assert read(tmp_path, reader, join_lines(reader, "\r\r\n").encode(), name="c") == plain


@every_reader
def test_byte_order_marks_are_removed_everywhere(tmp_path, reader):
    """As `cat` and `paste` leave them: before a line, and after a tab."""
    lines, plain = READERS[reader][0], read(tmp_path, reader, join_lines(reader).encode())
    marked = "".join(f"\ufeff{line}\n".replace("\t", "\t\ufeff") for line in lines)
    assert read(tmp_path, reader, marked.encode(), name="b") == plain


PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@every_reader
@pytest.mark.parametrize("suffix", PACK)
def test_packed_files_say_the_same(tmp_path, suffix, reader):
    plain, packed = join_lines(reader).encode(), PACK[suffix](join_lines(reader).encode())
    for name in (f"b.tsv{suffix}", f"B.TSV{suffix.upper()}"):
        if reader == "streamed pairs":
            with pytest.raises(InputError, match="is packed, and lines of it cannot be read by number: unpack it"):
                read(tmp_path, reader, packed, name=name)
        else:
            assert read(tmp_path, reader, packed, name=name) == read(tmp_path, reader, plain)
            with pytest.raises(InputError, match="cannot read .*TSV") as error:
                read(tmp_path, reader, packed[:-9], name=name.upper())
            assert "\n" not in str(error.value)
    for damaged in ("error", "skip"):
        with pytest.raises(InputError, match=rf"is packed: unpack it, or give its name the ending \{suffix}"):
            read(tmp_path, reader, packed, damaged, name="c.tsv")


def test_an_office_document_is_no_text(tmp_path):
    with pytest.raises(InputError, match="is a zip archive or an office document: save it as a text file"):
        read(tmp_path, "pairs", b"PK\3\4" + bytes(40), "skip", name="table.tsv")


def test_published_files_may_be_packed(tmp_path):
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(b"x\n"))
    assert text_files.existing_path(str(tmp_path / "a.txt"), "file") == str(tmp_path / "a.txt.xz")


def test_existing_name_with_comma_is_one_file(tmp_path):
    for name in ("a,b.tsv", "c.tsv"):
        (tmp_path / name).write_text("x\ty\n")
    with_comma, plain = (str(tmp_path / name) for name in ("a,b.tsv", "c.tsv"))
    assert text_files.parse_paths(with_comma) == [with_comma] and text_files.parse_paths(f"{plain}, {with_comma},") == [
        plain,
        with_comma,
    ]
    assert text_files.parse_paths(f"{tmp_path}/x,{tmp_path}/y") == [f"{tmp_path}/x", f"{tmp_path}/y"]


@pytest.mark.parametrize("line", ["dog 12", "dog\t12", "dog 12 0.5", "▁dog\t-3.25"])
def test_a_vocabulary_with_counts_is_refused(tmp_path, line):
    """As fairseq, subword-nmt, OpenNMT and sentencepiece write them."""
    (tmp_path / "v").write_text(f"cat\n{line}\n", encoding="utf-8")
    with pytest.raises(InputError, match="v line 2: expected one token, got '.*dog.*keep the first column alone"):
        pair_files.read_vocabulary(str(tmp_path / "v"))
    (tmp_path / "v").write_text("a\n \n", encoding="utf-8")
    assert pair_files.read_vocabulary(str(tmp_path / "v")) == ["a", " "], "a space is a token of characters"


PACKED_ELSEWHERE = {  # the first bytes of what each program writes
    "zstd": "28b52ffd0408410000",
    "lz4": "04224d186440a7",
    "7-Zip": "377abcaf271c0004",
    "RAR": "526172211a0701003392b5e5",
    "lzip": "4c5a49500114",
    "LZMA": "5d00008000ffffff",
    "compress": "1f9d906fdc94",
    "zlib": "789ccbcf4be52ccd",
    "tar": (b"one.tsv".ljust(257, b"\0") + b"ustar\x0000").hex(),
    "zip archive": "504b0304140000",
    "zip archive or": "504b0506000000",
    "packed: unpack it, or give its name the ending .xz": "fd377a585a000004",
    "packed: unpack it, or give its name the ending .gz": "1f8b0800000000",
    "packed: unpack it, or give its name the ending .bz2": "425a683931415926535900",
}


@every_reader
def test_other_archives_must_be_unpacked(reader, tmp_path):
    _, read = READERS[reader]
    for program, beginning in PACKED_ELSEWHERE.items():
        path = tmp_path / "corpus.tsv"
        path.write_bytes(bytes.fromhex(beginning) + b"\0\0\n" * 40)
        with pytest.raises(InputError) as error:
            read(str(path), "skip")
        message = str(error.value)
        assert program in message and "UTF-16" not in message and "\n" not in message, message
        path.unlink()
