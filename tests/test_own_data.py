"""docs/own_data.md is followed: the files it speaks of are made, its commands run; and damaged files are one line."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_launch import launch_here

from attention_jax import tasks
from attention_jax.config import TextFile, replace
from attention_jax.data import images, labeled_texts, splits, text_windows
from attention_jax.data.pairs import load_pairs
from attention_jax.errors import InputError
from attention_jax.printing import in_a_line
from experiments import classify_images, classify_text, language_model, translate_files

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "own_data.md").read_text(encoding="utf-8")
TINY = "--train.max-steps 2 --train.total-epochs 1 --model.num-heads 2"
SMALL = {
    "translate_files": f"{TINY} --model.hidden-size 8 --model.mlp-dim 8 --data.max-buckets 1 --decode.max-length 4"
    " --decode.beam-size 1 --model.num-encoder-layers 1 --model.num-decoder-layers 1",
    "classify_images": f"{TINY} --model.hidden-size 8 --model.mlp-dim 8 --model.num-layers 1 --data.pixels 16",
    "classify_text": f"{TINY} --model.hidden-size 8 --model.mlp-dim 8 --data.max-buckets 1",
    "language_model": f"{TINY} --model.hidden-size 8 --model.mlp-dim 8 --model.num-layers 1 --data.sequence-length 16"
    " --decode.length 4",
}
"""What is added to the page's commands."""


def picture(path: Path, size: tuple[int, int], mode: str, seed: int):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3)).astype(np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


def make_files(directory: Path):
    """What the page calls pairs.tsv, letter.txt, shapes, labels.tsv, more.csv, new.csv, book.txt and other.txt."""
    pairs = [f"I have {i} cats and {i % 7} dogs.\tJ'ai {i} chats et {i % 7} chiens.\n" for i in range(60)]
    (directory / "pairs.tsv").write_text("".join(pairs), encoding="utf-8")
    (directory / "letter.txt").write_text("I have 3 dogs.\n\nI have cats.\n", encoding="utf-8")
    modes = ("RGB", "L", "RGBA", "P", "1")
    for i in range(10):
        for kind in ("circle", "square"):
            picture(directory / "shapes" / kind / f"{i:03d}.png", (20 + i, 30), modes[i % 5], i)
    texts = [f"de\tEin Hund läuft {i} Mal.\nfr\tUn chien court {i} fois.\n" for i in range(30)]
    (directory / "labels.tsv").write_text("".join(texts), encoding="utf-8")
    (directory / "more.csv").write_text("label,text\nde,Ein Hund\nfr,Un chien\n", encoding="utf-8")
    (directory / "new.csv").write_text("id,text\n1,Ein Hund läuft\n2,\n", encoding="utf-8")
    (directory / "book.txt").write_text("First Citizen:\nSpeak, speak.\n\n" * 60, encoding="utf-8")
    (directory / "other.txt").write_text("Second Citizen:\nSpeak, citizen.\n\n" * 9, encoding="utf-8")


def commands() -> dict[str, list[list[str]]]:
    """{experiment: the words of each of its commands}, in the order of the page."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    parsed = [[shlex.split(line)[2:] for line in block.splitlines()] for language, block in blocks if not language]
    return {block[0][1]: block for block in parsed}


def test_every_page_command_is_tested():
    lines = re.findall(r"^python launch\.py .*$", PAGE, re.MULTILINE)
    assert len(lines) == sum(map(len, commands().values())) >= 12 and commands().keys() == SMALL.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_the_page_is_followed(name, tmp_path):
    make_files(tmp_path)
    (train, *later_commands) = commands()[name]
    result = launch_here(*train, *SMALL[name].split(), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("training: ") and f"in runs/{name}/001" in result.stdout
    for words in later_commands:
        result = launch_here(*words, cwd=tmp_path)
        assert result.returncode == 0, f"{words}: {result.stderr}"
        assert result.stdout or "--out" in words
    assert (tmp_path / "look.png").exists() or name == "language_model"
    assert (tmp_path / "lettre.txt").exists() or name != "translate_files"
    if name in ("translate_files", "classify_images"):
        gives_the_same_answers_elsewhere(tmp_path, name)
    if name == "classify_text":
        table = (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()
        assert (
            table[0] == "id,text,predicted,p_de,p_fr" and table[1].startswith("1,Ein Hund läuft,") and len(table) == 3
        )
        assert table[2] == "2,,,,"
        needs_no_data_to_predict_and_the_same_to_evaluate(tmp_path, later_commands[-1])


def gives_the_same_answers_elsewhere(place: Path, name: str):
    """In another directory, without the run and its data: the same output, attention maps and weights, to the bit."""
    elsewhere, run, image = place / "elsewhere", f"runs/{name}/001", place / "image.png"
    (place / "shapes" / "circle" / "000.png").rename(image)
    argument = str(image) if name == "classify_images" else "I have 3 dogs."
    commands = {"predict": [argument], "look": [argument, "--out", "look.html"], "export": ["--out", "own"]}
    if name == "translate_files":
        commands["predict"] = [str(place / "letter.txt"), "--out", "translated.txt"]
    shutil.copytree(place / run, elsewhere / "001", ignore=shutil.ignore_patterns("checkpoints"))
    expected = [launch_here(command, run, *options, cwd=place).stdout for command, options in commands.items()]
    for data in ("runs", "pairs.tsv", "shapes"):
        (place / data).rename(place / f"{data}.gone")
    results = [launch_here(command, "001", *options, cwd=elsewhere) for command, options in commands.items()]
    assert [(result.returncode, result.stdout, result.stderr) for result in results] == [
        (0, text.replace(run, "001"), "") for text in expected
    ]
    shutil.rmtree(elsewhere / "001")
    outputs = [path.relative_to(elsewhere) for path in elsewhere.rglob("*") if path.is_file()]
    assert len(outputs) == len(commands) + (
        name == "translate_files"
    )  # export writes two files, predict none but --out
    for path in outputs:
        assert (elsewhere / path).read_bytes() == (place / path).read_bytes(), path


def needs_no_data_to_predict_and_the_same_to_evaluate(place: Path, predict: list[str]):
    expected = launch_here(*predict, cwd=place).stdout
    text = (place / "labels.tsv").read_text(encoding="utf-8")
    (place / "labels.tsv").write_text(text.replace("Ein Hund läuft 7", "Ein Hund bellt 7"), encoding="utf-8")
    result = launch_here("evaluate", predict[1], cwd=place)
    assert result.returncode == 2 and "have changed since it was trained (fingerprint was" in result.stderr
    (place / "labels.tsv").unlink()
    assert launch_here(*predict, cwd=place).stdout == expected


EXPERIMENTS = (translate_files, classify_images, classify_text, language_model)


@pytest.mark.parametrize(
    "module",
    [pytest.param(module, marks=pytest.mark.slow) if module is classify_images else module for module in EXPERIMENTS],
    ids=lambda module: module.__name__.rpartition(".")[2],
)
def test_experiments_have_default_data_and_facts(module):
    """Without a network, without a file."""
    task = tasks.build(module.smoke())
    line = in_a_line(task.describe())
    assert line and "train" in line and "\n" not in line and json.dumps(task.describe())
    assert task.plan(0, 4)


PAIRS = translate_files.config().data
LABELS = classify_text.config().data
TEXT = language_model.config().data
IMAGES = classify_images.config().data


def from_pairs(path: Path, content: bytes, **changes):
    path.write_bytes(content)
    options = replace(PAIRS, tsv_file=str(path), tokenizer="whitespace", **changes)
    return load_pairs(options, 4)


def from_labels(path: Path, content: bytes, **changes):
    path.write_bytes(content)
    return labeled_texts.load(replace(LABELS, tsv_file=str(path), **changes), 4)


def from_text(path: Path, content: bytes, **changes):
    path.write_bytes(content)
    return text_windows.load(replace(TEXT, text_file=str(path), sequence_length=4, **changes))


GOOD = {
    from_pairs: [b"one %d\tun %d" % (i, i) for i in range(40)],
    from_labels: [b"%s\ttext number %d" % ((b"yes", b"no")[i % 2], i) for i in range(40)],
    from_text: [b"line number %d" % i for i in range(40)],
}
DIRTY = {
    "latin-1": (b"caf\xe9\tcaf\xe9", r"line 41: not valid UTF-8 \(byte 0xe9 at 4\)"),
    "an empty line": (b"", "line 41: expected"),
    "one column": (b"alone", "line 41: expected `(source|label) TAB (target|text)`, got 'alone'"),
    "no label": (b"\ttext", "line 41: expected"),
}


@pytest.mark.parametrize("dirt", DIRTY)
@pytest.mark.parametrize("load", GOOD, ids=lambda load: load.__name__)
def test_damaged_line_is_error_or_counted(tmp_path, load, dirt):
    line, message = DIRTY[dirt]
    content = b"\n".join([*GOOD[load], line]) + b"\n"
    if load is from_text and dirt != "latin-1":
        assert load(tmp_path / "a", content).facts["lines"] > 40  # that is a text like another
        return
    with pytest.raises(InputError, match=f"^{tmp_path}/a {message}.*--data.on-bad-record skip$"):
        load(tmp_path / "a", content)
    left = load(tmp_path / "a", content, on_bad_record="skip")
    good = load(tmp_path / "a", b"\n".join(GOOD[load])).facts
    assert left.facts == good | {"damaged_lines": 1, "first_damaged_line": left.facts["first_damaged_line"]}
    assert "line 41" in left.facts["first_damaged_line"]


@pytest.mark.parametrize("load", GOOD, ids=lambda load: load.__name__)
def test_windows_files_are_read_as_others_are(tmp_path, load):
    plain = load(tmp_path / "a", b"\n".join(GOOD[load]) + b"\n")
    windows = load(tmp_path / "b", b"\xef\xbb\xbf" + b"\r\n".join(GOOD[load]) + b"\r\n")
    assert windows.facts == plain.facts
    tokens = lambda data: getattr(data, "vocabulary", None) or data.source_vocabulary
    assert tokens(windows).tokens == tokens(plain).tokens


TOO_LITTLE = {
    (from_pairs, b""): "is empty",
    (from_labels, b""): "is empty",
    (from_text, b""): "is empty",
    (from_text, b"\n\n\n"): "only empty lines",
    (from_pairs, b"a\tb\n"): "at least 3 different sources, got 1",
    (from_labels, b"yes\ta\n"): "at least 2 classes, got 1: yes",
    (from_labels, b"yes\ta\nyes\tb\nyes\tc\n"): "at least 2 classes, got 1: yes",
    (from_labels, b"yes\ta\nno\tb\n"): "a class with at least 3",
    (from_labels, b"".join(b"text %d\tyes\n" % i for i in range(9))): "are the columns the other way round",
    (from_labels, b"a\tb\tc\n"): "line 1: expected `label TAB text`, got 'a.tb.tc'",
    (from_text, b"a\n"): "sequence-length 4 .*have 2, 1, 1: ",
}


@pytest.mark.parametrize("case", TOO_LITTLE, ids=lambda case: f"{case[0].__name__}-{case[1][:9]!r}")
def test_invalid_data_file_is_one_line_error(tmp_path, case):
    load, content = case
    with pytest.raises(InputError, match=TOO_LITTLE[case]) as error:
        load(tmp_path / "a", content)
    assert "\n" not in str(error.value)


def test_files_of_unequal_length_are_named(tmp_path):
    (tmp_path / "a").write_text("one\ntwo\n"), (tmp_path / "b").write_text("un\n")
    files = {"source_file": str(tmp_path / "a"), "target_file": str(tmp_path / "b")}
    with pytest.raises(InputError, match="equally many lines, but .*/a has 2 and .*/b 1"):
        load_pairs(replace(PAIRS, **files, on_bad_record="skip"), 4)


def test_facts_about_pairs(tmp_path):
    lines = [*GOOD[from_pairs], b"one 3\tun 3", b"a b c d e f\tu v"]
    data = from_pairs(tmp_path / "a", b"\n".join(lines), max_length=5, languages=("en", "fr"))
    assert [data.facts[f"{name}_pairs"] for name in ("train", "valid", "test")] == [32, 4, 4]
    assert sum(data.facts[f"overlong_{name}"] for name in ("train", "valid", "test")) == 1
    assert data.facts["pairs_left_out"] == 1 and data.facts["source_longest_tokens"] == 2


def test_facts_about_labeled_texts(tmp_path):
    content = b"".join(
        line + b"\n" for line in [*GOOD[from_labels], b"maybe\tx", b"no\ttext number 0", b"yes\t" + b"w " * 9]
    )
    data = from_labels(tmp_path / "a", content, max_length=8)
    assert data.facts["classes"] == 3 and data.facts["rarest_class"] == "maybe (1)"
    assert data.facts["largest_class"] == "yes (21)" and data.facts["largest_class_share"] == 0.5
    assert data.facts["texts_left_out"] == data.facts["texts_of_several_labels"] == data.facts["texts_cut"] == 1
    token_sets = [set(map(tuple, split.tokens.tolist())) for split in (*data.held_out.values(), *data.train)]
    assert all(len(split) for split in token_sets)
    labels = np.concatenate([split.label for split in data.held_out.values()])
    assert set(labels) == {data.names.index("yes"), data.names.index("no")}


def test_end_of_text_is_held_out(tmp_path):
    lines = [b"the line with the number %d" % i for i in range(100)]
    lines[99] = lines[3]
    data = from_text(tmp_path / "a", b"\n".join(lines), held_out_fraction=0.2)
    assert data.facts["held_out_lines_also_in_train"] == 1 and data.facts["lines"] == 100
    whole = "\n".join(line.decode() for line in lines)
    assert whole.startswith("".join(data.vocabulary.decode(data.train[0])))
    assert "".join(data.vocabulary.decode(data.held_out["valid"][0])) == "the l"
    assert data.facts["train_tokens"] + data.facts["valid_tokens"] + data.facts["test_tokens"] == len(whole) + 1


def test_subwords_and_line_ends_round_trip(tmp_path):
    text = b"a house, a mouse\n\nand a house again\n" * 40
    data = from_text(tmp_path / "a", text, tokenizer="sentencepiece", vocabulary_size=60)
    assert data.tokenizer.text(data.tokenizer.tokens("a mouse\n\na house")) == "a mouse\n\na house"
    assert data.characters_per_token["valid"] > 1.5 and data.facts["characters"] == len(text)
    as_it_is = "  a house,   a mouse \n\t\uff41"
    text = (as_it_is + "\n").encode() * 40
    data = from_text(tmp_path / "b", text, tokenizer="sentencepiece", vocabulary_size=40)
    assert data.tokenizer.text(data.tokenizer.tokens(as_it_is)) == as_it_is, "spaces and wide letters count, too"


def test_image_formats_are_read_damaged_ones_named(tmp_path):
    make_files(tmp_path)
    options = replace(IMAGES, path=str(tmp_path / "shapes"), pixels=8)
    data = images.load(options)
    assert data.train.image.shape == (14, 8, 8, 3)
    assert [len(split.label) for split in (data.train, *data.held_out.values())] == [14, 4, 2]
    assert data.facts["classes"] == 2 and data.facts["largest_class_share"] == 0.5
    assert data.facts["test_images_also_in_train"] == 0 and "untested_classes" not in data.facts
    (tmp_path / "shapes" / "circle" / "bad.png").write_bytes(b"no image")
    picture(tmp_path / "shapes" / "rare" / "one.png", (20, 20), "L", 1)
    with pytest.raises(InputError, match="cannot read the image .*/circle/bad.png"):
        images.load(options)
    skipped = images.load(replace(options, on_bad_record="skip"))
    assert skipped.facts["rarest_class"] == "rare (1)" and skipped.facts["untested_classes"] == "rare"


def test_test_images_in_train_are_counted(tmp_path):
    make_files(tmp_path)
    circles = tmp_path / "shapes" / "circle"
    (circles / "004.png").write_bytes((circles / "000.png").read_bytes())
    assert images.load(replace(IMAGES, path=str(tmp_path / "shapes"), pixels=8)).facts["test_images_also_in_train"] == 1


def test_preset_by_name_unknown_is_one_line(tmp_path):
    result = launch_here("train", "translate_files", "--preset", "base", "--help-all", cwd=tmp_path)
    assert result.returncode == 0 and "(default: 512)" in result.stdout
    result = launch_here("train", "translate_files", "--preset", "huge", cwd=tmp_path)
    assert result.returncode == 2 and "choose one of small, base, big" in result.stderr
    result = launch_here("train", "date_luong", "--preset", "big", cwd=tmp_path)
    assert result.returncode == 2 and "it has none" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("share", [0.1, 0.4, 0.49])
def test_some_texts_of_every_class_train(share):
    label = np.repeat([0, 1, 2, 3], [20, 4, 3, 1])
    rows = splits.split_by_label(label, share)
    assert sorted(np.concatenate(list(rows.values()))) == list(range(28))
    assert set(label[rows["train"]]) == {0, 1, 2, 3} and set(label[rows["test"]]) == {0, 1, 2}
    assert sum(label[rows["train"]] == 0) >= 2


@pytest.mark.parametrize("length", [16, 20, 23])
def test_held_out_windows_cover_their_split(tmp_path, length):
    """Window after window without a gap; what is left is too short for another one."""
    (tmp_path / "own.txt").write_text("".join(f"the line of number {n}\n" for n in range(100)))
    options = TextFile(text_file=str(tmp_path / "own.txt"), tokenizer="character", sequence_length=length)
    data = text_windows.load(options)
    for name, rows in data.held_out.items():
        tokens = data.facts[f"{name}_tokens"]
        assert rows.shape == ((tokens - 1) // length, length + 1)
        np.testing.assert_array_equal(rows[1:, 0], rows[:-1, -1])
