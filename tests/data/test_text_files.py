"""Rows of files: what is no text is refused whoever reads it, what is damaged is named or left out, and every format
reads the same."""

import bz2
import csv
import datetime
import gzip
import lzma
import zipfile
from functools import partial
from pathlib import Path

import pytest
from tables import write

from attention_jax.config import Corpus, LabeledFile, TextFile
from attention_jax.data import (
    corpus,
    generated_texts,
    labeled_texts,
    pairs,
    public_texts,
    published,
    text_files,
    text_windows,
    tokenizers,
)
from attention_jax.data.text_tables import read_rows
from attention_jax.errors import InputError

PAIRS = [f"one {i}\tun {i}" for i in range(12)]
COLUMNS = ("source", "target")


READERS = {
    "pairs": (PAIRS, lambda path, damaged: list(read_rows(path, COLUMNS, damaged, sentences=True))),
    "two files": (PAIRS, lambda path, damaged: list(read_rows((path, path), COLUMNS, damaged))),
    "labeled texts": (
        PAIRS,
        lambda path, damaged: list(labeled_texts.read_examples(LabeledFile(path, on_bad_record=damaged))),
    ),
    "plain text": (PAIRS, lambda path, damaged: list(text_windows.read_text(TextFile(path, on_bad_record=damaged)))),
    "lines to translate": (PAIRS, lambda path, damaged: text_files.read_lines(path, "file")),
    "published pairs": (PAIRS, lambda path, damaged: list(published.read_pairs([path, path]))),
    "vocabulary": ([f"w{i}" for i in range(12)], lambda path, damaged: pairs.read_vocabulary(path)),
    "merges": ([f"a{i} b" for i in range(12)], lambda path, damaged: tokenizers.read_merges(path)),
    "fixed width": (
        [f"{i:02d}+1 _{i:02d}" for i in range(12)],
        lambda path, damaged: generated_texts.read_fixed_width(path, "sum"),
    ),
    "shakespeare": (PAIRS, lambda path, damaged: public_texts.shakespeare(path)),
}
"""{reader: (the lines of a file that it reads, the function of (path, "error" or "skip"))}"""
every_reader = pytest.mark.parametrize("reader", READERS)
PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def read(place: Path, reader: str, content: bytes, damaged: str = "error", name: str = "a"):
    (place / name).write_bytes(content)
    return READERS[reader][1](str(place / name), damaged)


def join_lines(reader: str, end: str = "\n") -> str:
    return "".join(line + end for line in READERS[reader][0])


def check_error(call, message: str):
    """The InputError of `call` is one line that has the pattern `message`."""
    with pytest.raises(InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


@every_reader
def test_what_is_no_text_is_refused(tmp_path, reader):
    """UTF-16 and UTF-32, a NUL byte, line ends of old Macs: also if damaged lines are to be left out."""
    lines, text = READERS[reader][0], join_lines(reader)
    macs = [join_lines(reader, "\r"), join_lines(reader, "\r") + lines[0] + "\n"]
    cases = [
        *(
            (text.encode(f"utf-{codec}"), "UTF-(16|32), not UTF-8.*save it as UTF-8")
            for codec in ("16", "16-le", "32-be")
        ),
        ("\n".join([*lines[:3], lines[3] + "\0", *lines[4:]]).encode(), "line 4 has a NUL byte"),
        *((content.encode(), r"has 12 carriage returns and \d newlines") for content in macs),
    ]
    for content, message in cases:
        for damaged in ("error", "skip"):
            check_error(lambda content=content, damaged=damaged: read(tmp_path, reader, content, damaged), message)


@every_reader
def test_line_ends_marks_and_packing_change_nothing(tmp_path, reader):
    """Windows line ends; byte order marks as `cat` and `paste` leave them, before a line and after a tab; packed."""
    text = join_lines(reader)
    plain = read(tmp_path, reader, text.encode())
    marked = "".join(f"\ufeff{line}\n".replace("\t", "\t\ufeff") for line in READERS[reader][0])
    for content in (join_lines(reader, "\r\n"), join_lines(reader, "\r\r\n"), marked):
        assert read(tmp_path, reader, content.encode()) == plain
    for suffix, pack in PACK.items():
        packed = pack(text.encode())
        for name in (f"b.tsv{suffix}", f"B.TSV{suffix.upper()}"):
            assert read(tmp_path, reader, packed, name=name) == plain
        check_error(lambda: read(tmp_path, reader, packed[:-9], name=f"c.tsv{suffix}"), "cannot read .*tsv")
        message = rf"is packed: unpack it, or give its name the ending \{suffix}"
        check_error(lambda: read(tmp_path, reader, packed, "skip", name="d.tsv"), message)


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
    "zip archive or an office document": "504b0304140000",
    "zip archive or": "504b0506000000",
}


def test_other_archives_must_be_unpacked(tmp_path):
    for program, beginning in PACKED_ELSEWHERE.items():
        content = bytes.fromhex(beginning) + b"\0\0\n" * 40
        with pytest.raises(InputError) as error:
            read(tmp_path, "pairs", content, "skip", name="corpus.tsv")
        message = str(error.value)
        assert program in message and "UTF-16" not in message and "\n" not in message, message


def test_member_of_archive_is_read(tmp_path):
    content = "Grüße\nzwei\n".encode()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("deep/fra.txt", content)
        archive.writestr("_about.txt", "not this")
    assert text_files.read_bytes(str(tmp_path / "a.zip"), "file", "fra.txt") == content
    check_error(
        lambda: text_files.read_bytes(str(tmp_path / "a.zip"), "file", "x"), "holds no x; it holds deep/fra.txt, _a"
    )
    (tmp_path / "b.zip").write_bytes(b"PK no zip")
    check_error(lambda: text_files.read_bytes(str(tmp_path / "b.zip"), "file", "fra.txt"), "cannot read .*b.zip")


def test_only_newlines_end_lines(tmp_path, monkeypatch):
    """str.splitlines would also split at form feeds, U+0085 and U+2028, and put two files out of step."""
    (tmp_path / "a").write_bytes("a\u2028b\x0cc\x85\nd\n".encode())
    for block in (1, 3, 2**23):
        monkeypatch.setattr(text_files, "BLOCK", block)
        lines = list(text_files.each_line(str(tmp_path / "a"), "file"))
        assert [line.decode() for line in lines] == text_files.read_lines(str(tmp_path / "a"), "file")
    assert [line.decode() for line in lines] == ["a\u2028b\x0cc\x85", "d"]


def test_existing_name_with_comma_is_one_file(tmp_path):
    for name in ("a,b.tsv", "c.tsv"):
        (tmp_path / name).write_text("x\ty\n")
    comma, plain = (str(tmp_path / name) for name in ("a,b.tsv", "c.tsv"))
    assert text_files.parse_paths(comma) == [comma] and text_files.parse_paths(f"{plain}, {comma},") == [plain, comma]
    assert text_files.parse_paths(f"{tmp_path}/x,{tmp_path}/y") == [f"{tmp_path}/x", f"{tmp_path}/y"]


@pytest.mark.parametrize("line", ["dog 12", "dog\t12", "dog 12 0.5", "▁dog\t-3.25"])
def test_a_vocabulary_with_counts_is_refused(tmp_path, line):
    """As fairseq, subword-nmt, OpenNMT and sentencepiece write them."""
    (tmp_path / "v").write_text(f"cat\n{line}\n", encoding="utf-8")
    with pytest.raises(InputError, match="v line 2: expected one token, got '.*dog.*keep the first column alone"):
        pairs.read_vocabulary(str(tmp_path / "v"))
    (tmp_path / "v").write_text("a\n \n", encoding="utf-8")
    assert pairs.read_vocabulary(str(tmp_path / "v")) == ["a", " "], "a space is a token of characters"


TABLES = ("tsv", "csv", "csv.gz", "jsonl", "jsonl.gz", "parquet")
TEXTS = [(f"one {i} é", f'un, "{i}"') for i in range(60)]


def write_table(path: Path, rows: list[dict]) -> str:
    """Write rows in the format of the file's name."""
    if path.name.endswith(".tsv"):
        path.write_text("".join("\t".join(map(str, row.values())) + "\n" for row in rows), encoding="utf-8")
    elif ".csv" in path.name:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "wt", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
    else:
        pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
        write(path, rows)
    return str(path)


@pytest.mark.parametrize("kind", TABLES)
def test_every_format_holds_the_same_rows(kind, tmp_path):
    """Also a field in a field, other columns, labels that are numbers, and texts of several lines."""
    rows = lambda *arguments, **options: [row for _, row in read_rows(*arguments, **options)]
    path = write_table(tmp_path / f"a.{kind}", [{"source": a, "target": b, "other": 1} for a, b in TEXTS])
    assert rows(path, COLUMNS, sentences=True) == TEXTS
    numbered = list(read_rows(path, COLUMNS, sentences=True))
    assert [number for number, _ in numbered] == [n + kind.startswith("csv") for n in range(60)]  # below the header
    path = write_table(tmp_path / f"b.{kind}", [{"label": i, "text": a} for i, (a, _) in enumerate(TEXTS)])
    assert rows(path, ("label", "text")) == [(str(i), a) for i, (a, _) in enumerate(TEXTS)]
    if kind == "tsv":
        return
    path = write_table(tmp_path / f"c.{kind}", [{"text": "a\nb"}, {"text": "c"}])
    assert list(text_windows.read_text(TextFile(path))) == ["a", "b", "c"]
    check_error(lambda: rows(path, ("text",), sentences=True), "the column text has a line break")
    check_error(
        lambda: rows(path, COLUMNS),
        "needs the columns source, target, it has text|the column source is empty or missing",
    )
    if not kind.startswith("csv"):
        path = write_table(tmp_path / f"d.{kind}", [{"translation": {"en": a, "fr": b}} for a, b in TEXTS])
        assert rows(path, ("translation.en", "translation.fr")) == TEXTS


DAMAGED = {
    ("a.tsv", b"no tab"): "expected `source TAB target`, got 'no tab'",
    ("a.tsv", b"\tno source"): "expected `source TAB target`",
    ("a.tsv", b"caf\xe9\tx"): r"not valid UTF-8 \(byte 0xe9 at 4\)",
    ("a.jsonl", b'["a", "b"]'): "expected a JSON object, got",
    ("a.jsonl", b'{"source": "a'): "expected a JSON object",
    ("a.jsonl", b'{"source": "a"}'): "the column target is empty or missing; the columns are source",
    ("a.jsonl", b'{"source": "a", "target": " "}'): "the column target is empty",
    ("a.jsonl", b'{"source": ["a"], "target": "b"}'): "in the column source",
    ("a.jsonl", b'{"source": true, "target": "b"}'): "in the column source",
    ("a.jsonl", b'{"source": "a", "target": NaN}'): "the column target is empty or missing",
    ("a.jsonl", b'{"source": "a", "target": -Infinity}'): "in the column target, got '-inf'",
    ("a.jsonl", b'{"source": "a", "target": 1e999}'): "in the column target, got 'inf'",
    ("a.jsonl", b'{"source": "a\\u0000", "target": "b"}'): "has a NUL",
    ("a.jsonl", b'{"source": "a\\ud83d", "target": "b"}'): "has half of a character",
    ("a.jsonl", b'{"source": "a\\nb", "target": "b"}'): "the column source has a line break",
    ("a.csv", b"a"): "expected 2 columns as in line 1, got 1",
    ("a.csv", b"a, "): "the column target is empty",
    ("a.csv", b"caf\xe9,b"): "not valid UTF-8",
    ("a.csv", b'"a"b,c'): "a text with quotes or commas is in double quotes",
}
GOOD = {"a.tsv": b"x\ty\n", "a.jsonl": b'{"source": "x", "target": "y"}\n', "a.csv": b"source,target\nx,y\n"}


@pytest.mark.parametrize("case", DAMAGED, ids=lambda case: f"{case[0]}-{case[1][:12]!r}")
def test_a_damaged_row_is_named_or_skipped(case, tmp_path):
    (name, line), path = case, tmp_path / case[0]
    path.write_bytes(GOOD[name] + line + b"\n" + GOOD[name].splitlines()[-1] + b"\n")
    number = 3 if name == "a.csv" else 2
    list_rows = lambda damaged="error", complaints=None: [
        row for _, row in read_rows(str(path), COLUMNS, damaged, complaints, sentences=True)
    ]
    message = rf"{name} line {number}: .*{DAMAGED[case]}.*; or leave out all such lines: --data.on-bad-record skip"
    check_error(list_rows, message)
    complaints = []
    assert list_rows("skip", complaints) == [("x", "y")] * 2 and len(complaints) == 1
    path.write_bytes(GOOD[name].splitlines(keepends=True)[0] * (name == "a.csv") + line + b"\n")
    check_error(lambda: list_rows("skip"), "none of the .* lines can be used; the first: .*")


def test_further_columns_are_an_error_but_for_sentences(tmp_path):
    (tmp_path / "a.tsv").write_text("Go.\tVa !\tCC-BY\n")
    assert [*read_rows(str(tmp_path / "a.tsv"), COLUMNS, sentences=True)] == [(0, ("Go.", "Va !"))]
    check_error(lambda: [*read_rows(str(tmp_path / "a.tsv"), ("label", "text"))], "expected `label TAB text`")


@pytest.mark.parametrize(
    "source, target, complaint",
    [
        (b"a\nb\n", b"A\n", r"equally many lines, but .*source has 2 and .*target 1"),
        (b"a\n", b"A\nB\nC\n", r"equally many lines, but .*source has 1 and .*target 3"),
        (b"a\n\nc\n", b"A\nB\nC\n", "source line 2 is empty"),
        (b"a\nb\nc\n", b"A\nB\n  \n", "target line 3 is empty"),
        (b"a\nb\xfc\n", b"A\nB\n", r"source line 2: not valid UTF-8 \(byte 0xfc at 2\)"),
        (b"", b"A\n", "source is empty"),
        (None, b"A\n", "no source file at .*source"),
    ],
)
def test_parallel_files_that_do_not_fit_are_named(tmp_path, source, target, complaint):
    paths = tmp_path / "source", tmp_path / "target"
    for path, content in zip(paths, (source, target)):
        path.write_bytes(content) if content is not None else None
    check_error(lambda: list(read_rows(tuple(map(str, paths)), COLUMNS)), complaint)


def test_parquet_values_that_are_no_text_are_named(tmp_path):
    """Bytes, dates, lists; text that is not UTF-8 and a time too far away, which Arrow writes; another file."""
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
    import pyarrow.parquet as parquet

    path = tmp_path / "a.parquet"
    list_rows = lambda: list(read_rows(str(path), COLUMNS))
    for value in (b"a", datetime.date(2026, 1, 2), ["a"], None):
        write(path, [{"source": "x", "target": value}])
        problem = "the column target is empty" if value is None else "expected a text or a number in the column target"
        check_error(list_rows, f"line 1: {problem}")
    text = pyarrow.Array.from_buffers(pyarrow.string(), 3, pyarrow.array([b"caf\xe9"] * 3).buffers())
    for column in (text, pyarrow.array([10**14] * 3, pyarrow.timestamp("s"))):
        parquet.write_table(pyarrow.table({"source": ["x"] * 3, "target": column}), path)
        check_error(list_rows, rf"^cannot read {path}: .+$")
    path.write_bytes(b"PAR1 and then something else")
    check_error(list_rows, r"cannot read .*a\.parquet")
    path.unlink()
    check_error(list_rows, "no file of texts at")
    options = partial(Corpus, source_file=str(path), target_file=str(path))
    check_error(lambda: corpus.corpus_files(options()), "has both sides: give it as --data.tsv-file")
