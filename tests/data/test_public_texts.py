"""Public texts, from small files of their formats: from a path, or downloaded with digests and prepared by TFDS."""

import dataclasses
import gzip
import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from attention_jax.config import FraEng, Multi30k, Shakespeare, TimeMachine
from attention_jax.data import public_texts, tokenizers
from attention_jax.data.pairs import encode_sources, load_pairs
from attention_jax.data.published import MULTI30K_FILES, MULTI30K_FOLDERS, PUBLISHED
from attention_jax.errors import InputError

FRA = "".join(f"Word {i % 400}.\tMot {i}\u202f!\n" for i in range(1200))
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "tinyshakespeare" / "input.txt.gz"


@pytest.fixture
def fra_directory(tmp_path):
    with zipfile.ZipFile(tmp_path / "fra-eng.zip", "w") as archive:
        archive.writestr("fra.txt", FRA)
    return tmp_path


def serve(server, monkeypatch, name: str, files: dict[str, bytes]) -> dict[str, tuple[str, str]]:
    """Let a local server publish the files of a corpus; return their addresses and digests."""
    server.files |= files
    source = {file: (server.url + file, "sha256:" + hashlib.sha256(x).hexdigest()) for file, x in files.items()}
    monkeypatch.setitem(PUBLISHED, name, PUBLISHED[name]._replace(source=source))
    return source


def test_fra_eng_d2l_split_and_widths(fra_directory):
    options = FraEng(path=str(fra_directory), split="d2l", max_length=9, max_buckets=1)
    data = load_pairs(options, 128)
    assert data.texts["train"].source == [f"Word {i % 400}." for i in range(512)]
    assert len(data.held_out["valid"].source) == 128 and data.facts["vocabulary_from"] == "train+valid"
    assert data.target_vocabulary.sentence(data.train[0].target[0]) == ["mot", "<unk>", "!"]  # 0 occurs once only
    assert data.source_vocabulary.sentence(data.train[0].source[5]) == ["word", "5", "."]
    wide = load_pairs(dataclasses.replace(options, pad_source=True), 128)
    for narrow, padded in zip((*data.train, data.held_out["valid"]), (*wide.train, wide.held_out["valid"])):
        width = narrow.source.shape[1]
        assert width < 9 and padded.source.shape[1] == 9 and (padded.source[:, :width] == narrow.source).all()
        assert (padded.source[:, width:] == wide.source_vocabulary.pad_id).all()
        assert (padded.source_length == narrow.source_length).all() and (padded.target == narrow.target).all()


def test_fra_eng_d2l_641_has_one_more_pair(fra_directory):
    options = FraEng(path=str(fra_directory), split="d2l", max_length=9, max_buckets=1)
    plain, book = load_pairs(options, 128), load_pairs(dataclasses.replace(options, split="d2l-641"), 128)
    assert book.texts["train"] == plain.texts["train"] and len(book.held_out["valid"].source) == 129
    assert book.texts["valid"].source == [*plain.texts["valid"].source, "Word 240."]
    again = [data.source_vocabulary.sentence(data.train[0].source[240]) for data in (plain, book)]
    assert again == [["word", "<unk>", "."], ["word", "240", "."]], "pair 641 is the second one with this word"


def test_fra_eng_full_split_shares_no_source(fra_directory):
    data = load_pairs(FraEng(path=str(fra_directory / "fra-eng.zip")), 128)
    assert data.facts["valid_pairs"] == data.facts["test_pairs"] == 60
    assert not data.seen["test"].any() and not set(data.texts["valid"].source) & set(data.texts["test"].source)
    assert data.facts["train_pairs"] == 1200 - 3 * 120  # three translations of each source


def test_fra_eng_bad_input(tmp_path):
    with pytest.raises(InputError, match="holds no fra.txt nor fra-eng.zip"):
        load_pairs(FraEng(path=str(tmp_path)))
    (tmp_path / "fra.txt").write_text("Go.\tVa !\nHi.\n")
    with pytest.raises(InputError, match=r"^/.*fra.txt line 2: expected `source TAB target`, got 'Hi.'"):
        load_pairs(FraEng(path=str(tmp_path)))
    (tmp_path / "fra.txt").write_text("Go.\tVa !\n")
    for split, message in (("d2l", "d2l's split needs 640 pairs"), ("full", "needs at least 20, .* has 1")):
        with pytest.raises(InputError, match=message):
            load_pairs(FraEng(path=str(tmp_path), split=split))


def multi30k_text(split: str, language: str) -> str:
    rows = {"train": 30, "valid": 4, "test": 3, "test_2017": 2}[split]
    return "".join(f"{language} sentence number {i} of {split.replace('_', ' ')} .\n" for i in range(rows))


def write_multi30k(directory: Path, form: str):
    folder = directory / MULTI30K_FOLDERS[form]
    folder.mkdir(parents=True)
    for split, name in MULTI30K_FILES[form].items():
        for language in ("en", "de", "fr"):
            with gzip.open(folder / (name.format(language) + ".gz"), "wt") as file:
                text = multi30k_text(split, language)
                file.write(text.replace("sentence", "sen@@ tence") if form == "bpe" else text)
    if form == "bpe":
        (folder / "code").write_text("#version: 0.2\ns e\nse n\nt e\nte n\nten c\ntenc e</w>\n")


@pytest.mark.parametrize("form", ["raw", "tok"])
def test_multi30k_from_a_directory(tmp_path, form):
    write_multi30k(tmp_path, form)
    options = Multi30k(path=str(tmp_path), source="de", target="fr", form=form)
    data = load_pairs(options)
    assert data.texts["test"].source[0] == "de sentence number 0 of test ."
    assert data.texts["test_2017"].target[1] == "fr sentence number 1 of test 2017 ."
    assert [data.facts[f"{name}_pairs"] for name in ("train", "valid", "test", "test_2017")] == [30, 4, 3, 2]
    assert load_pairs(dataclasses.replace(options, path=str(tmp_path / form))).texts == data.texts
    sources = load_pairs(dataclasses.replace(options, concatenated_pairs=3)).texts["train"].source
    assert sum(source.count(".") == 1 for source in sources) in (30, 31)
    assert max(source.count(".") for source in sources) == 3
    (tmp_path / form / MULTI30K_FILES[form]["test"].format("fr")).with_suffix(".fr.gz").unlink()
    with pytest.raises(InputError, match="holds no .*test_2016_flickr"):
        load_pairs(options)


def test_multi30k_bpe_is_undone_and_done_again(tmp_path):
    write_multi30k(tmp_path, "bpe")
    options = Multi30k(path=str(tmp_path), source="en", target="de", form="bpe", tokenizer="bpe", joint_vocabulary=True)
    data = load_pairs(options)
    assert data.texts["test"].source[0] == "en sentence number 0 of test ."
    assert data.source_vocabulary.sentence(data.held_out["test"].source[0])[:5] == ["e@@", "n", "sen@@", "tence", "n@@"]
    assert data.target_tokenizer.text(["sen@@", "tence", "."]) == "sentence ."
    source, _ = encode_sources(data, ["sentence"])
    assert data.source_vocabulary.sentence(source[0]) == ["sen@@", "tence"]


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"source": "en", "target": "en"}, "pairs of en, de, fr, not en-en"),
        ({"source": "en", "target": "fr", "form": "bpe", "tokenizer": "bpe"}, "pairs of en, de, not en-fr"),
        ({"source": "en", "target": "xx"}, "target must be one of 'en', 'de', 'fr'; got 'xx'"),
        ({"form": "bpe"}, "form bpe and tokenizer whitespace"),
        ({"path": "/nowhere"}, "no file or directory at /nowhere"),
    ],
)
def test_multi30k_bad_input(changes, complaint):
    with pytest.raises(InputError, match=complaint):
        load_pairs(Multi30k(**changes))


def test_downloads_have_digests_and_are_prepared_once(server, tmp_path, monkeypatch, fra_directory):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "home"))
    texts = {
        (split, language): multi30k_text(split, language)
        for split in MULTI30K_FILES["raw"]
        for language in ("de", "en")
    }
    raw = MULTI30K_FILES["raw"]
    name, files = (
        "multi30k/raw_de_en",
        {
            f"raw/{raw[split].format(language)}.gz": gzip.compress(text.encode())
            for (split, language), text in texts.items()
        },
    )
    source = serve(server, monkeypatch, name, files)
    wrong = source | {"raw/val.en.gz": (source["raw/val.en.gz"][0], "sha256:" + "0" * 64)}
    monkeypatch.setitem(PUBLISHED, name, PUBLISHED[name]._replace(source=wrong))
    with pytest.raises(InputError, match="has sha256 .* expected 000000000000"):
        load_pairs(Multi30k(form="raw"))
    monkeypatch.setitem(PUBLISHED, name, PUBLISHED[name]._replace(source=source))
    data = load_pairs(Multi30k(form="raw"))
    assert data.texts["valid"].target[3] == "en sentence number 3 of valid ." and data.facts["train_pairs"] == 30
    assert list(data.held_out) == ["valid", "test", "test_2017"]
    num_requests = len(server.requests)
    assert load_pairs(Multi30k(form="raw")).texts == data.texts and len(server.requests) == num_requests == 9
    assert (tmp_path / "home" / "multi30k" / "raw_de_en").is_dir()  # `downloads` of the options
    serve(server, monkeypatch, "fra_eng/d2l", {"fra-eng.zip": (fra_directory / "fra-eng.zip").read_bytes()})
    assert load_pairs(FraEng()).texts == load_pairs(FraEng(path=str(fra_directory))).texts
    serve(server, monkeypatch, "shakespeare/karpathy", {"tinyshakespeare.txt": PLAY.encode()})
    assert public_texts.shakespeare() == PLAY
    serve(server, monkeypatch, "time_machine/d2l", {"timemachine.txt": BOOK.encode()})
    assert public_texts.time_machine() == BOOK.rstrip("\n")


def test_every_file_has_a_digest_of_its_length():
    lengths = {"sha1": 40, "sha256": 64}
    for corpus in PUBLISHED.values():
        assert corpus.source and corpus.splits
        for _, digest in corpus.source.values():
            algorithm, _, digits = digest.partition(":")
            assert len(digits) == lengths[algorithm] and int(digits, 16)


PLAY = "".join(f"Citizen {n}:\nBefore we proceed {n * n}, hear me speak.\n\n" for n in range(40))
BOOK = "The Time Machine, by H. G. Wells [1898]\n\n\nI\n\n" + "The Time Traveller (for so it will be convenient)\n" * 8


@pytest.fixture
def books(tmp_path):
    for name, text in (("input.txt", PLAY), ("timemachine.txt", BOOK)):
        with gzip.open(tmp_path / f"{name}.gz", "wt") as file:
            file.write(text)
    return str(tmp_path)


def test_windows_of_shakespeare_are_the_text(books):
    data = public_texts.load_shakespeare(Shakespeare(books, sequence_length=16, overlap=4))
    read = lambda row: "".join(data.vocabulary.decode(row))
    border = int(0.9 * len(PLAY))
    for i in (0, 1, 7, len(data.train) - 1):
        assert read(data.train[i]) == PLAY[4 * i : 4 * i + 17]
    assert 4 * len(data.train) + 17 <= border + 4 and 4 * (len(data.train) - 1) + 17 <= border
    held_out = data.held_out["valid"]
    assert read(held_out[:, 1:].ravel()) == PLAY[border + 1 : border + 1 + 16 * len(held_out)]
    assert len(PLAY) - border - 1 - 16 * len(held_out) < 16  # what is left of the end


def test_windows_of_time_machine_are_letters(books):
    load = lambda **sizes: public_texts.load_time_machine(
        TimeMachine(path=books, train_windows=20, valid_windows=5, **sizes)
    )
    data = load(sequence_length=10)
    assert len(data.vocabulary) == 28 and data.train.shape == (20, 11) and data.held_out["valid"].shape == (5, 11)
    read = lambda row: "".join(data.vocabulary.decode(row))
    plain = "".join(tokenizers.letters().tokens(BOOK.rstrip("\n")))
    assert plain.startswith("the time machine by h g wells i the time traveller")
    assert [read(row) for row in data.train] == [plain[i : i + 11] for i in range(20)]
    assert read(data.held_out["valid"][0]) == plain[20:31] and data.facts["characters"] == len(plain)
    strided = load(sequence_length=4, stride=5)
    assert [read(row) for row in strided.train] == [plain[5 * i : 5 * i + 5] for i in range(20)]


def test_windows_that_do_not_fit_are_one_line(books, tmp_path):
    cases = {
        "fit at most .* windows": lambda: public_texts.load_time_machine(TimeMachine(path=books)),
        "no file or directory at": lambda: public_texts.load_time_machine(TimeMachine(path=books + "/missing")),
        "--data.sequence-length .* 203 characters": lambda: public_texts.load_shakespeare(
            Shakespeare(books, sequence_length=500)
        ),
        "must be at least 1": lambda: Shakespeare(books, overlap=0),
    }
    for message, call in cases.items():
        with pytest.raises(InputError, match=message) as error:
            call()
        assert "\n" not in str(error.value)


@pytest.mark.skipif(not SHARED.exists(), reason="the published text is not here")
def test_the_published_play():
    text = public_texts.shakespeare(str(SHARED))
    [(_, digest)] = PUBLISHED["shakespeare/karpathy"].source.values()
    assert "sha256:" + hashlib.sha256(text.encode()).hexdigest() == digest
    assert (len(text), len(set(text))) == (public_texts.CHARACTERS, public_texts.DISTINCT)
    data = public_texts.load_shakespeare(Shakespeare(str(SHARED)))
    assert data.train.dtype == np.int32 and data.facts["train_characters"] == 1_003_854  # nanoGPT's prepare.py says so
    rows = {"train": len(data.train), "valid": len(data.held_out["valid"])}
    assert rows == public_texts.count_windows(
        public_texts.CHARACTERS, Shakespeare()
    )  # what is compiled without the text
