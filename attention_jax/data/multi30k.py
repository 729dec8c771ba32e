"""Multi30k (Elliott et al. 2016, 2017): 29,000 image captions with their translations, WMT multimodal task 1.

Three forms: "raw" and "tok" (lower-cased, normalized, Moses-tokenized) as in github.com/multi30k/dataset, "bpe" (tok
with joint BPE of 10,000 merges) as in github.com/LividWo/Revisit-MMT (Wu et al. 2021, ACL). Splits: train, valid
(1,014), test = test_2016_flickr (1,000), test_2017 = test_2017_flickr (1,000). For research use.
"""

import os
from dataclasses import dataclass
from typing import ClassVar

import tensorflow_datasets as tfds

from attention_jax import config as settings
from attention_jax.data import pair_files, store, text_files
from attention_jax.data.download import digest, download
from attention_jax.data.pairs import PairData, Texts
from attention_jax.data.splits import concatenate_pairs
from attention_jax.errors import InputError

DATASET = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/"
REVISIT = "https://raw.githubusercontent.com/LividWo/Revisit-MMT/master/data/multi30k-en-de/"
LANGUAGES = ("en", "de", "fr")
SPLITS = ("train", "valid", "test", "test_2017")
NAMES = {
    "raw": dict(zip(SPLITS, ("train.{}", "val.{}", "test_2016_flickr.{}", "test_2017_flickr.{}"))),
    "tok": dict(
        zip(SPLITS, (f"{name}.lc.norm.tok.{{}}" for name in ("train", "val", "test_2016_flickr", "test_2017_flickr")))
    ),
    "bpe": dict(zip(SPLITS, ("train.{}", "valid.{}", "test.2016.{}", "test.2017.{}"))),
}
SUBDIRECTORY = {"raw": "raw", "tok": "tok", "bpe": os.path.join("bpe", "en-de")}


def check_languages(form: str, source: str, target: str) -> None:
    """An unknown pair is one line."""
    valid_languages = LANGUAGES[:2] if form == "bpe" else LANGUAGES
    if source == target or not {source, target} <= set(valid_languages):
        raise InputError(
            f"Multi30k {form} has pairs of {', '.join(valid_languages)}, not {source}-{target}; "
            "choose --data.source and --data.target among them"
        )


def split_paths(directory: str, form: str, languages: tuple[str, str]) -> dict[str, list[str]]:
    """Return the paths of each split, source first, in `directory`/FORM or `directory`; plain or .gz."""
    nested = os.path.join(directory, SUBDIRECTORY[form])
    where = nested if os.path.isdir(nested) else directory
    if not os.path.isdir(where):
        raise InputError(f"no directory at {directory}; --data.path is a directory with Multi30k's {form} files")
    return {
        split: [
            text_files.existing_path(os.path.join(where, name.format(language)), f"Multi30k {form} file")
            for language in languages
        ]
        for split, name in NAMES[form].items()
    }


def download_files(form: str, languages: tuple[str, ...]) -> str:
    """Download the files of these languages (and BPE's merges); the directory they are in."""
    directory = os.path.join(store.data_home(), "downloads", "multi30k")
    names = [name.format(language) for name in NAMES[form].values() for language in languages] + (
        ["code"] if form == "bpe" else []
    )
    for name in names:
        name = name + ".gz" if form == "raw" else name
        address = REVISIT + name if form == "bpe" else DATASET + SUBDIRECTORY[form] + "/" + name
        relative = os.path.join(SUBDIRECTORY[form], name)
        download(address, os.path.join(directory, relative), "sha256:" + SHA256[relative])
    return directory


def merges_file(directory: str) -> str:
    """The BPE merges that belong to the bpe form."""
    nested = os.path.join(directory, SUBDIRECTORY["bpe"])
    return text_files.existing_path(
        os.path.join(nested if os.path.isdir(nested) else directory, "code"), "file of BPE merges"
    )


@dataclass(kw_only=True)
class Multi30kConfig(tfds.core.BuilderConfig):
    """The form and languages of the files, and their directory."""

    form: str
    languages: tuple[str, str]
    path: str = ""


class Multi30k(tfds.core.GeneratorBasedBuilder):
    """Two languages of Multi30k, raw, tokenized or with BPE. BPE is undone: texts consist of words, as in "tok"."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS: ClassVar = [
        Multi30kConfig(name=f"{form}_{source}_{target}", form=form, languages=(source, target))
        for form in NAMES
        for source in LANGUAGES
        for target in LANGUAGES
        if source != target and not (form == "bpe" and "fr" in (source, target))
    ]

    def _info(self):
        return store.text_features(
            self, "Image captions and their translations.", homepage="https://github.com/multi30k/dataset"
        )

    def _split_generators(self, dl_manager):
        corpus = self.builder_config
        directory = corpus.path or download_files(corpus.form, corpus.languages)
        texts = {
            split: text_files.read_parallel(*paths)
            for split, paths in split_paths(directory, corpus.form, corpus.languages).items()
        }
        return {split: self._generate_examples(pairs) for split, pairs in texts.items()}

    def _generate_examples(self, texts):
        plain = (lambda line: line.replace("@@ ", "")) if self.builder_config.form == "bpe" else str
        for number, (source, target) in enumerate(zip(*texts)):
            yield number, {"source": plain(source), "target": plain(target)}


def load(config: settings.Multi30k, batch_size: int = 128) -> PairData:
    """The dataset of `config`: from the directory at `config.path`, or downloaded. Changed files are prepared again."""
    languages = (config.source, config.target)
    check_languages(config.form, *languages)
    if (config.form == "bpe") != (config.tokenizer == "bpe"):
        raise InputError(
            f"--data.form bpe and --data.tokenizer bpe belong together, "
            f"got form {config.form} and tokenizer {config.tokenizer}"
        )
    corpus = f"{config.form}_{config.source}_{config.target}"
    if config.path:
        paths = split_paths(config.path, config.form, languages)
        digests = [digest(path) for pair in paths.values() for path in pair]
        name = f"{corpus}_{store.fingerprint(digests)}"
        corpus = Multi30kConfig(name=name, form=config.form, languages=languages, path=os.path.abspath(config.path))
    splits = {
        name: Texts(**columns)
        for name, columns in store.read_rows(store.prepare_builder(Multi30k, corpus), SPLITS).items()
    }
    if config.concatenated_pairs > 1:
        most = config.concatenated_pairs
        splits = {name: concatenate_pairs(texts, most, seed) for seed, (name, texts) in enumerate(splits.items())}
    merges = merges_file(config.path or download_files("bpe", languages)) if config.form == "bpe" else ""
    plain = config.form == "raw" and config.tokenizer in ("sentencepiece", "character")
    return pair_files.assemble(
        splits, config, batch_size, languages=languages, merges=merges, bleu_tokenize="13a" if plain else "none"
    )


SHA256 = {  # of the published files, which are gzipped in raw/ and plain elsewhere
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
