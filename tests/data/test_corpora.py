"""fra_eng, Multi30k, reverse and a user's corpus, from small files of their formats."""

import dataclasses
import gzip
import hashlib
import zipfile

import numpy as np
import pytest

from attention_jax.config import Corpus, FraEng, Multi30k, Reverse
from attention_jax.data import fra_eng, multi30k, reverse
from attention_jax.data.pairs import encode_sources, load_pairs
from attention_jax.errors import InputError

FRA = "".join(f"Word {i % 400}.\tMot {i}\u202f!\n" for i in range(1200))


@pytest.fixture
def fra_directory(tmp_path):
    with zipfile.ZipFile(tmp_path / "fra-eng.zip", "w") as archive:
        archive.writestr("fra.txt", FRA)
    return tmp_path


def test_fra_eng_d2l_split(fra_directory):
    data = load_pairs(FraEng(path=str(fra_directory), split="d2l", max_length=9, max_buckets=1), 128)
    assert (
        data.texts["train"].source == [f"Word {i % 400}." for i in range(512)]
        and len(data.held_out["valid"].source) == 128
    )
    assert data.target_vocabulary.sentence(data.train[0].target[0]) == ["mot", "<unk>", "!"]  # 0 occurs once only
    assert data.source_vocabulary.sentence(data.train[0].source[5]) == ["word", "5", "."]
    assert data.facts["vocabulary_from"] == "train+valid"


def test_fra_eng_d2l_641_has_one_more_pair(fra_directory):
    options = FraEng(path=str(fra_directory), split="d2l", max_length=9, max_buckets=1)
    plain, book = load_pairs(options, 128), load_pairs(dataclasses.replace(options, split="d2l-641"), 128)
    assert book.texts["train"] == plain.texts["train"] and len(book.held_out["valid"].source) == 129
    assert book.texts["valid"].source == [*plain.texts["valid"].source, "Word 240."]
    again = [data.source_vocabulary.sentence(data.train[0].source[240]) for data in (plain, book)]
    assert again == [["word", "<unk>", "."], ["word", "240", "."]], "pair 641 is the second one with this word"


def test_fra_eng_pads_sources_as_the_book_does(fra_directory):
    options = FraEng(path=str(fra_directory), split="d2l", max_length=9, max_buckets=1)
    plain, wide = load_pairs(options, 128), load_pairs(dataclasses.replace(options, pad_source=True), 128)
    for narrow, padded in zip((*plain.train, plain.held_out["valid"]), (*wide.train, wide.held_out["valid"])):
        width = narrow.source.shape[1]
        assert width < 9 and padded.source.shape[1] == 9
        assert (padded.source[:, :width] == narrow.source).all()
        assert (padded.source[:, width:] == wide.source_vocabulary.pad_id).all()
        assert (padded.source_length == narrow.source_length).all() and (padded.target == narrow.target).all()


def test_fra_eng_full_split_shares_no_source(fra_directory):
    data = load_pairs(FraEng(path=str(fra_directory / "fra-eng.zip")), 128)
    assert data.facts["valid_pairs"] == data.facts["test_pairs"] == 60
    assert not data.seen["test"].any() and not set(data.texts["valid"].source) & set(data.texts["test"].source)
    assert data.facts["train_pairs"] == 1200 - 3 * 120  # three translations of each source


def test_fra_eng_bad_input(tmp_path):
    with pytest.raises(InputError, match="holds neither fra.txt nor fra-eng.zip"):
        load_pairs(FraEng(path=str(tmp_path)))
    (tmp_path / "fra.txt").write_text("Go.\tVa !\nHi.\n")
    with pytest.raises(
        InputError, match=r"^/.*fra.txt line 2: expected `source TAB target`, got 'Hi.'$"
    ):  # TFDS adds nothing to it
        load_pairs(FraEng(path=str(tmp_path)))
    (tmp_path / "fra.txt").write_text("Go.\tVa !\n")
    with pytest.raises(InputError, match="d2l's split needs 640 pairs"):
        load_pairs(FraEng(path=str(tmp_path), split="d2l"))
    with pytest.raises(InputError, match="needs at least 20, .* has 1"):
        load_pairs(FraEng(path=str(tmp_path), split="full"))


def multi30k_text(split: str, language: str) -> str:
    rows = {"train": 30, "valid": 4, "test": 3, "test_2017": 2}[split]
    return "".join(f"{language} sentence number {i} of {split.replace('_', ' ')} .\n" for i in range(rows))


def write_multi30k(directory, form: str) -> None:
    target = directory / multi30k.SUBDIRECTORY[form]
    target.mkdir(parents=True)
    for split, name in multi30k.NAMES[form].items():
        for language in ("en", "de", "fr"):
            with gzip.open(target / (name.format(language) + ".gz"), "wt") as file:
                text = multi30k_text(split, language)
                file.write(text.replace("sentence", "sen@@ tence") if form == "bpe" else text)
    if form == "bpe":
        (target / "code").write_text("#version: 0.2\ns e\nse n\nt e\nte n\nten c\ntenc e</w>\n")


@pytest.mark.parametrize("form", ["raw", "tok"])
def test_multi30k_from_a_directory(tmp_path, form):
    write_multi30k(tmp_path, form)
    data = load_pairs(Multi30k(path=str(tmp_path), source="de", target="fr", form=form))
    assert data.texts["test"].source[0] == "de sentence number 0 of test ."
    assert data.texts["test_2017"].target[1] == "fr sentence number 1 of test 2017 ."
    assert [data.facts[f"{name}_pairs"] for name in ("train", "valid", "test", "test_2017")] == [30, 4, 3, 2]
    directly = load_pairs(Multi30k(path=str(tmp_path / form), source="de", target="fr", form=form))
    assert directly.texts == data.texts


def test_multi30k_is_read_again_when_its_files_change(tmp_path):
    write_multi30k(tmp_path, "tok")
    config = Multi30k(path=str(tmp_path))
    load_pairs(config)
    (tmp_path / "tok" / "test_2016_flickr.lc.norm.tok.de.gz").write_bytes(gzip.compress(b"neu .\n" * 3))
    assert load_pairs(config).texts["test"].source == ["neu ."] * 3


def test_multi30k_with_rows_of_pairs(tmp_path):
    write_multi30k(tmp_path, "tok")
    data = load_pairs(Multi30k(path=str(tmp_path), concatenated_pairs=3))
    sources = data.texts["train"].source
    assert (
        sum(source.count(".") == 1 for source in sources) in (30, 31)
        and max(source.count(".") for source in sources) == 3
    )
    assert data.facts["train_pairs"] == len(sources) and data.facts["test_inputs_also_in_train"] == 0


def test_multi30k_bpe_is_undone_and_done_again(tmp_path):
    write_multi30k(tmp_path, "bpe")
    data = load_pairs(
        Multi30k(path=str(tmp_path), source="en", target="de", form="bpe", tokenizer="bpe", joint_vocabulary=True)
    )
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
        ({"path": "/nowhere"}, "no directory at /nowhere"),
    ],
)
def test_multi30k_bad_input(changes, complaint):
    with pytest.raises(InputError, match=complaint):
        load_pairs(Multi30k(**changes))


def test_multi30k_with_a_file_missing(tmp_path):
    write_multi30k(tmp_path, "tok")
    (tmp_path / "tok" / "val.lc.norm.tok.en.gz").unlink()
    with pytest.raises(InputError, match="no Multi30k tok file at .*val.lc.norm.tok.en"):
        load_pairs(Multi30k(path=str(tmp_path)))


def test_multi30k_is_downloaded_with_digests(server, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(multi30k, "DATASET", server.url)
    digests = {}
    for split, name in multi30k.NAMES["raw"].items():
        for language in ("de", "en"):
            path = "raw/" + name.format(language) + ".gz"
            server.files[path] = gzip.compress(multi30k_text(split, language).encode())
            digests[path] = hashlib.sha256(server.files[path]).hexdigest()
    monkeypatch.setattr(multi30k, "SHA256", digests | {"raw/val.en.gz": "0" * 64})
    with pytest.raises(InputError, match="has sha256 .* expected 000000000000"):
        load_pairs(Multi30k(form="raw"))
    monkeypatch.setattr(multi30k, "SHA256", digests)
    data = load_pairs(Multi30k(form="raw"))
    assert data.texts["valid"].target[3] == "en sentence number 3 of valid ." and data.facts["train_pairs"] == 30
    num_requests = len(server.requests)
    assert load_pairs(Multi30k(form="raw")).texts == data.texts and len(server.requests) == num_requests == 9


def test_fra_eng_is_downloaded(server, tmp_path, monkeypatch, fra_directory):
    content = (fra_directory / "fra-eng.zip").read_bytes()
    server.files["fra-eng.zip"] = content
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "home"))
    monkeypatch.setattr(fra_eng, "URL", server.url + "fra-eng.zip")
    with pytest.raises(InputError, match="has sha1"):
        load_pairs(FraEng())
    monkeypatch.setattr(fra_eng, "SHA1", hashlib.sha1(content).hexdigest())
    assert load_pairs(FraEng()).facts["test_pairs"] == 60


def test_known_digests_cover_all_files():
    paths = set()
    for form, names in multi30k.NAMES.items():
        for name in names.values():
            for language in multi30k.LANGUAGES[: 2 if form == "bpe" else 3]:
                paths.add(f"{multi30k.SUBDIRECTORY[form]}/{name.format(language)}" + (".gz" if form == "raw" else ""))
    assert set(multi30k.SHA256) == paths | {"bpe/en-de/code"}


def joey_reverse(n: int, maxlen: int) -> list[np.ndarray]:
    """generate_samples of Joey NMT's script, on NumPy's global generator."""
    samples = []
    for _ in range(n):
        size = np.random.randint(1, maxlen + 1)
        samples.append(np.random.randint(0, 50, size))
    return samples


def test_reverse_has_joeys_draws():
    np.random.seed(42)
    expected = [joey_reverse(200, 25), joey_reverse(1000, 30), joey_reverse(1000, 30)]
    splits = reverse.generate(200)
    for split, samples in zip(("train", "valid", "test"), expected):
        assert splits[split].source == [" ".join(map(str, sample)) for sample in samples]
        assert splits[split].target == [" ".join(map(str, sample[::-1])) for sample in samples]


def test_reverse_load():
    data = load_pairs(Reverse(examples=300))
    assert (
        len(data.source_vocabulary) == 54
        and data.facts["train_pairs"] == 300
        and len(data.held_out["test"].source) == 1000
    )
    assert max(bucket.source.shape[1] for bucket in data.train) <= 26 and data.held_out["test"].source.shape[1] == 31


def test_own_corpus_from_two_files_and_from_one(tmp_path):
    rows = [(f"source {i}", f"target {i}") for i in range(40)] + [("source 0", "target 0")]
    (tmp_path / "s").write_text("".join(s + "\n" for s, _ in rows))
    (tmp_path / "t").write_text("".join(t + "\n" for _, t in rows))
    (tmp_path / "both.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in rows))
    double = load_pairs(Corpus(source_file=str(tmp_path / "s"), target_file=str(tmp_path / "t"), held_out_fraction=0.1))
    single = load_pairs(Corpus(tsv_file=str(tmp_path / "both.tsv"), held_out_fraction=0.1))
    assert double.texts == single.texts and double.facts == single.facts
    assert (
        double.facts["train_pairs"],
        double.facts["valid_pairs"],
        double.facts["test_pairs"],
        double.facts["pairs_left_out"],
    ) == (32, 4, 4, 1)


def test_bleu_counts_characters_where_words_have_no_spaces(tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"{n} dogs\t{n}只狗\n" for n in range(40)), encoding="utf-8")
    tokens = lambda **options: load_pairs(Corpus(tsv_file=str(tmp_path / "pairs.tsv"), **options)).bleu_tokenize
    plain = {"tokenizer": "character", "languages": ("en", "zh")}
    assert (tokens(**plain), tokens(tokenizer="character"), tokens(languages=("en", "zh"))) == ("zh", "13a", "none")


def test_own_corpus_bad_input(tmp_path):
    with pytest.raises(
        InputError, match="--data.source-file FILE and --data.target-file FILE, or --data.tsv-file FILE"
    ):
        load_pairs(Corpus(source_file="x"))
    lines = [f"source {i}\ttarget {i}" for i in range(20)]
    lines[12] = "a long " + "very " * 30 + "source\ttarget"
    (tmp_path / "a.tsv").write_text("\n".join(lines))
    with pytest.raises(InputError, match="line 13: the source has 34 tokens with its end mark, the limit is 20"):
        load_pairs(Corpus(tsv_file=str(tmp_path / "a.tsv"), max_length=20))
    assert load_pairs(Corpus(tsv_file=str(tmp_path / "a.tsv"), max_length=20, overlong="drop")).facts[
        "train_pairs"
    ] in (17, 18)
    (tmp_path / "a.tsv").write_text("a\tb\n")
    with pytest.raises(InputError, match="at least 3 different sources"):
        load_pairs(Corpus(tsv_file=str(tmp_path / "a.tsv")))
