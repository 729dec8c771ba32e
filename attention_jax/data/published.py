"""Where public corpora of texts are published, with digests, and how their files are read."""

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from attention_jax.data.cache import download
from attention_jax.data.text_files import PACKED, read_bytes, read_lines
from attention_jax.data.text_tables import read_rows
from attention_jax.errors import InputError
from attention_jax.files import data_home

Rows = Iterable[tuple[str, ...]]
"""Texts, one for each feature"""


class Published(NamedTuple):
    """A public corpus."""

    source: dict[str, tuple[str, str]]
    """{file: (address, digest)}"""
    splits: dict[str, tuple[tuple[str, ...], ...]]
    """{split: its files, each by the names that it may have}"""
    read: Callable[[Sequence[str]], Rows]
    """(paths of the files of a split) -> rows"""
    features: tuple[str, ...] = ("source", "target")
    homepage: str = ""


def read_pairs(paths: Sequence[str]) -> Rows:
    """Read sentence pairs from two files with one sentence per line, or a file of two columns."""
    path = paths[0] if len(paths) == 1 else tuple(paths)
    return (row for _, row in read_rows(path, ("source", "target"), sentences=True, member="fra.txt"))


def undo_bpe(paths: Sequence[str]) -> Rows:
    """Read sentence pairs whose words were split by subword-nmt: the words."""
    return (tuple(text.replace("@@ ", "") for text in row) for row in read_pairs(paths))


def read_text(paths: Sequence[str]) -> Rows:
    """Read a text, which is one row, with its newlines."""
    [path] = paths
    yield ("\n".join(read_lines(path, "text")) + "\n" * read_bytes(path, "text").endswith(b"\n"),)


def multi30k(form: str, languages: tuple[str, str]) -> Published:
    """Multi30k (Elliott et al. 2016, 2017): 29,000 image captions with their translations, WMT multimodal task 1.

    Three forms: "raw" and "tok" (lower-cased, normalized, Moses-tokenized) as in github.com/multi30k/dataset, "bpe"
    (tok with joint BPE of 10,000 merges, which is undone: texts consist of words) as in github.com/LividWo/Revisit-MMT
    (Wu et al. 2021, ACL). test = test_2016_flickr (1,000), test_2017 = test_2017_flickr (1,000). For research use.
    """
    names = {
        split: tuple(f"{MULTI30K_FOLDERS[form]}/{pattern.format(language)}" for language in languages)
        for split, pattern in MULTI30K_FILES[form].items()
    }
    files = [*itertools.chain.from_iterable(names.values()), *(["bpe/en-de/code"] if form == "bpe" else [])]
    files = [f"{name}.gz" if form == "raw" else name for name in files]
    address = lambda name: REVISIT + os.path.basename(name) if form == "bpe" else DATASET + name
    return Published(
        source={name: (address(name), "sha256:" + MULTI30K_SHA256[name]) for name in files},
        splits={split: tuple((name, os.path.basename(name)) for name in pair) for split, pair in names.items()},
        read=undo_bpe if form == "bpe" else read_pairs,
        homepage="https://github.com/multi30k/dataset",
    )


D2L = "http://d2l-data.s3-accelerate.amazonaws.com/"
PLAYS = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
DATASET = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/"
REVISIT = "https://raw.githubusercontent.com/LividWo/Revisit-MMT/master/data/multi30k-en-de/"
LANGUAGES = ("en", "de", "fr")
MULTI30K_FOLDERS = {"raw": "raw", "tok": "tok", "bpe": "bpe/en-de"}
RAW_FILES = {
    "train": "train.{}", "valid": "val.{}", "test": "test_2016_flickr.{}", "test_2017": "test_2017_flickr.{}",
}  # fmt: skip
MULTI30K_FILES = {
    "raw": RAW_FILES,
    "tok": {split: name.replace(".{}", ".lc.norm.tok.{}") for split, name in RAW_FILES.items()},
    "bpe": {"train": "train.{}", "valid": "valid.{}", "test": "test.2016.{}", "test_2017": "test.2017.{}"},
}
MULTI30K_SHA256 = {  # of the published files, which are gzipped in raw/ and plain elsewhere
    "bpe/en-de/code": "5b545f318e49f24367c7399019c9aeb5e3720b6379a08f887c2792af71c37f2a",
    "bpe/en-de/test.2016.de": "375c20d50f4c486149a78dfcfb161a430a04ddabe2b7d150f0c7811dc455ac60",
    "bpe/en-de/test.2016.en": "13b5fe3f92f78c54446d66afcaaa0a00a33ab653a8411f16812c9c5ca3795d6d",
    "bpe/en-de/test.2017.de": "9deefbe5705b60c3b5a790146e232b411a0da0420fd194ed6f6ad3a2674340a0",
    "bpe/en-de/test.2017.en": "5252390a58d57bce8d6a69a973e4908e98c7b70d3fc7ccc9c3963747ae8b177d",
    "bpe/en-de/train.de": "b2c74def7ec129f7ea7023a51501c77174c377ef06c6ccc2f031adcfb5cfadbd",
    "bpe/en-de/train.en": "0ffe3e3bac16e6aa33ef0dd6a7dca81587479b0d18dff0db2a92ac3f32b00c86",
    "bpe/en-de/valid.de": "eeb95680d6a06eafb13e3494eed9f9fa99783b892f4a3c72dd36e7ce2e000b68",
    "bpe/en-de/valid.en": "193d0d18fef5d1bc9d1cddafa13a644de3c5d6a24b45ac44476dcc5e96bfac6e",
    "raw/test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "raw/test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "raw/test_2016_flickr.fr.gz": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
    "raw/test_2017_flickr.de.gz": "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee",
    "raw/test_2017_flickr.en.gz": "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074",
    "raw/test_2017_flickr.fr.gz": "3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496",
    "raw/train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "raw/train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "raw/train.fr.gz": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    "raw/val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "raw/val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "raw/val.fr.gz": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
    "tok/test_2016_flickr.lc.norm.tok.de": "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
    "tok/test_2016_flickr.lc.norm.tok.en": "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
    "tok/test_2016_flickr.lc.norm.tok.fr": "1463bd5960f9bfe098ec3cd752d3df0c49c84dc646fb518964a29232658cd836",
    "tok/test_2017_flickr.lc.norm.tok.de": "02067e4a9402786a4fcb8c1b6f4307e4a5073ced64800abead5273b54f5f31f6",
    "tok/test_2017_flickr.lc.norm.tok.en": "c9d1dfd7a26add989382e534af235af9f0f658b2a30e7eb0efdaf142496ee54f",
    "tok/test_2017_flickr.lc.norm.tok.fr": "c0583117a47b31e8a6c6a97cfe8de153e462074668f4e994764fcc80b21d33b4",
    "tok/train.lc.norm.tok.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
    "tok/train.lc.norm.tok.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
    "tok/train.lc.norm.tok.fr": "8fa41bb718412bcb7c5dfa58603842810a01543eae86a51279f9886b901266e1",
    "tok/val.lc.norm.tok.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
    "tok/val.lc.norm.tok.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
    "tok/val.lc.norm.tok.fr": "b303e301aa21fe7822a846b2b3fb2d5a1121ec807cd5b1d006fb7b2b5507168a",
}
PUBLISHED = {
    "fra_eng/d2l": Published(
        {"fra-eng.zip": (f"{D2L}fra-eng.zip", "sha1:94646ad1522d915e7b0f9296181140edcf86a4f5")},
        {"train": (("fra.txt", "fra-eng.zip"),)},
        read_pairs,
        homepage="https://www.manythings.org/anki/",
    ),
    "time_machine/d2l": Published(
        {"timemachine.txt": (f"{D2L}timemachine.txt", "sha1:090b5e7e70c295757f55df93cb0a180b9691891a")},
        {"train": (("timemachine.txt",),)},
        lambda paths: ((line,) for line in read_lines(*paths, "text")),
        features=("text",),
        homepage="https://www.gutenberg.org/ebooks/35",
    ),
    "shakespeare/karpathy": Published(
        {"tinyshakespeare.txt": (PLAYS, "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed")},
        {"train": (("input.txt", "tinyshakespeare.txt"),)},
        read_text,
        features=("text",),
        homepage="https://github.com/karpathy/char-rnn",
    ),
    **{
        f"multi30k/{form}_{source}_{target}": multi30k(form, (source, target))
        for form in MULTI30K_FILES
        for source in LANGUAGES
        for target in LANGUAGES
        if source != target and not (form == "bpe" and "fr" in (source, target))
    },
}
"""{name of a corpus in TFDS_DATA_DIR: where it comes from}"""


def locate_file(path: str, names: Sequence[str]) -> str:
    """Return the path of a file, which is at `path`, or has one of these names in the directory `path`; possibly
    packed."""
    is_directory = os.path.isdir(path)
    places = [os.path.join(path, name) for name in names] if is_directory else [path]
    for place, suffix in itertools.product(places, ("", *PACKED)):
        if os.path.isfile(place + suffix):
            return place + suffix
    if is_directory:
        raise InputError(
            f"{path} holds no {' nor '.join(names)}: give the directory that has it, or leave --data.path out"
        )
    raise InputError(f"no file or directory at {path} (nor {path}.gz): give the path of a file that exists")


def download_files(name: str) -> str:
    """Download the files of a corpus, unless they are there; return their directory."""
    folder = "multi30k" if name.startswith("multi30k") else ""
    directory = os.path.join(data_home(), "downloads", folder)
    for file, (address, digest) in PUBLISHED[name].source.items():
        download(address, os.path.join(directory, file), digest)
    return directory
