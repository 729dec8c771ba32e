"""Pretrained models of tasks that runs have, too: vision models (ViT, DeiT) and translators (MarianMT, T5)."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from attention_jax import config as configs
from attention_jax.data import image_files
from attention_jax.data.batches import length_bucket, pad_rows
from attention_jax.data.images import ImageData, Split
from attention_jax.data.pairs import PairData, Texts as PairTexts, make_pairs
from attention_jax.data.text_tables import Columns
from attention_jax.data.tokenizers import parse_tokenizer, sentencepiece_model, tokenizer_of_json, vocabulary_of
from attention_jax.data.vocabulary import BOS, Tokenizer, Vocabulary
from attention_jax.decode import greedy
from attention_jax.errors import InputError, explain_damage
from attention_jax.pretrained import exchange, generation_config, image_recipe, tensors, tokenizer
from attention_jax.pretrained.foreign_files import json_object
from attention_jax.pretrained.interface import FUNCTIONS, Pretrained, Texts, check_texts
from attention_jax.pretrained.pooled_search import apply_generation_rules, pooled_beam_search
from attention_jax.pretrained.translator_names import LONGEST
from attention_jax.pretrained.vit_names import sizes_of
from attention_jax.tasks import Task
from attention_jax.tasks.generation import start_decoding
from attention_jax.tasks.seq2seq import Seq2seqTask
from attention_jax.tasks.vision import VisionTask

TRAINED = 512
"""The longest sources that Marian and T5 were trained on, in tokens."""


@dataclass(frozen=True, eq=False, repr=False)
class PretrainedTask(Pretrained):
    """A pretrained model with the task of a run of this kind."""

    task: Task | None = None
    build_task: ClassVar[Callable[[Path, exchange.Weights], Task]]
    """Returns the task of a model in a directory, as `save_pretrained` writes it; InputError for a missing file."""

    @classmethod
    def of(cls, path: Path, weights: exchange.Weights, options: configs.ModelOptions) -> "PretrainedTask":
        arrays = {name: np.asarray(array) for name, array in weights.arrays.items()}
        weights = weights._replace(options=options, arrays=arrays)
        task = cls.build_task(path if path.is_dir() else path.parent, weights)
        return cls(path, options, task.model, exchange.nested(weights.arrays), None, task)

    @property
    def table_columns(self) -> Columns:
        return self.task.table_columns

    @property
    def classes(self) -> tuple[str, ...]:
        return self.task.classes

    def attention(self, texts: Texts) -> tuple:
        return self.task.attention_maps(self.params, check_texts(texts, "attention"))

    def predict(self, texts: Texts, attention: Path | str | None = None) -> list[str]:
        texts = check_texts(texts, "predict")
        return self.task.predict(self.params, texts, None if attention is None else Path(attention))


# --- vision models ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ClassifierTask(VisionTask):
    """A vision model whose files say how images are prepared, and what its logits are."""

    recipe: image_recipe.Recipe
    function: str

    def answer(self, logits):
        return FUNCTIONS[self.function](logits)

    @property
    def meaning(self) -> str:
        return "the output" if self.function == "none" else super().meaning

    def read(self, paths: list[str]) -> np.ndarray:
        return np.stack([self.pixels(path) for path in paths])

    def pixels(self, path: str) -> np.ndarray:
        """Read an image file as the recipe says: uint8 [S, S, C]; InputError where that is not the model's size."""
        _, height, width, channels = self.data.train.image.shape
        pixels = self.recipe.pixels(image_files.opaque(path, "L" if channels == 1 else "RGB"))
        if pixels.shape != (height, width, channels):
            raise InputError(
                f"{path} has {pixels.shape[0]} x {pixels.shape[1]} pixels after what {image_recipe.FILE} says; the "
                f"model needs {height} x {width}: change size and crop_size there, or the image"
            )
        return pixels


def recipe_in(directory: Path, about: dict, size: int) -> image_recipe.Recipe:
    """The recipe of images in a directory; without one, the middle of the image and numbers from -1 to 1, with a
    note."""
    if (directory / image_recipe.FILE).is_file():
        recipe, unread = image_recipe.recipe_of(
            json_object(directory / image_recipe.FILE), str(about.get("model_type", "vit"))
        )
        if unread:
            print(f"note: not read in {directory / image_recipe.FILE}: {', '.join(unread)}", file=sys.stderr)
        return recipe
    if isinstance(about.get("pretrained_cfg"), dict):
        return image_recipe.timm_recipe(about["pretrained_cfg"], size)
    print(
        f"note: assumed, as there is no {directory / image_recipe.FILE}: the middle square of an image, normalized to "
        "numbers from -1 to 1",
        file=sys.stderr,
    )
    middle = {"size": {"shortest_edge": size}, "do_center_crop": True, "crop_size": size}
    return image_recipe.recipe_of(middle, "vit")[0]


def classifier_task(directory: Path, weights: exchange.Weights) -> ClassifierTask:
    """Return the task of a ViT."""
    size, channels, classes = sizes_of(weights.options, weights.arrays)
    about = json_object(directory / "config.json", needed=False)
    recipe = recipe_in(directory, about, size)
    for name, values in (("image_mean", recipe.mean), ("image_std", recipe.deviation)):
        if np.shape(values) not in ((), (channels,)):
            raise InputError(f"{name} in {image_recipe.FILE} must be one number or {channels}, has {len(values)}")
    mean, deviation = (np.broadcast_to(np.float32(x), channels) for x in (recipe.mean, recipe.deviation))
    placeholder = Split(np.zeros((1, size, size, channels), np.uint8), np.zeros(1, np.int32))
    names = tensors.class_names(about, classes) or tuple(map(str, range(classes)))
    data = ImageData(placeholder, {"test": placeholder}, names, normalization=(mean, deviation))
    config = configs.Config(directory.name, configs.Images("folder"), weights.options)
    return ClassifierTask(config, data, exchange.module_of(weights), recipe, weights.function)


class PretrainedClassifier(PretrainedTask):
    """A vision model; preprocessor_config.json says how images are prepared."""

    build_task = staticmethod(classifier_task)

    @property
    def function(self) -> str:
        return self.task.function

    def classify(self, texts: Texts) -> np.ndarray:
        return self.task.probabilities(self.params, check_texts(texts, "classify"))


# --- translators ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TranslatorTask(Seq2seqTask):
    """An encoder-decoder whose files say how it generates, as transformers does it."""

    search: generation_config.Search
    ends: tuple[int, ...]
    """The tokens that end a text."""

    def read(self, texts: list[str]) -> dict[str, np.ndarray]:
        """Encode the sources as the model's library does: special tokens that a text spells are these tokens."""
        vocabulary, tokenizer = self.data.source_vocabulary, self.data.source_tokenizer
        rows = [[*vocabulary.encode(tokenizer.tokens(text)), vocabulary.eos_id] for text in texts]
        source, length = pad_rows(rows, vocabulary.pad_id, length_bucket(max(map(len, rows))))
        return {"source": source, "source_length": length}

    def start(self, params, batch) -> tuple[Callable, Any, dict]:
        """Return the step and the cache of decoding under the rules of the files, and what both ways need."""
        limits, count = self.decoding_limits, batch["source"].shape[0]
        step, cache = start_decoding(self.model, params, batch, limits["max_length"])
        decode_args = {"bos": limits["bos"], "ends": self.ends, "max_length": limits["max_length"]}
        if self.search.rules != generation_config.Rules():
            step, cache = apply_generation_rules(
                step, cache, count, self.search.rules, **decode_args, beams=self.search.beams > 1
            )
        return step, cache, decode_args | {"batch_size": count, "pad": limits["pad"]}

    def generate(self, params, batch):
        step, cache, decode_args = self.start(params, batch)
        return self.unify_ends(greedy(step, cache, eos=decode_args.pop("ends"), **decode_args))

    def generate_words(self, params, batch):
        return self.generate(params, batch) if self.search.beams == 1 else self.best(params, batch, 1)[0][:, 0]

    def hypotheses(self, params, batch):
        return self.best(params, batch, self.search.beams)

    def best(self, params, batch, n_best: int):
        """Return the best hypotheses of the beam search: tokens [B, N, T] and scores [B, N]."""
        step, cache, decode_args = self.start(params, batch)
        how = {"beam_size": self.search.beams, "alpha": self.search.alpha, "early_stopping": self.search.early_stopping}
        normalize = self.search.renormalize or self.search.rules == generation_config.Rules()
        tokens, scores = pooled_beam_search(step, cache, **decode_args, **how, normalize=normalize, n_best=n_best)
        return self.unify_ends(tokens), scores

    def unify_ends(self, tokens):
        """Return the tokens with the vocabulary's end of text in the place of every other one."""
        ends = jnp.isin(tokens, jnp.asarray(self.ends, jnp.int32))
        return jnp.where(ends, self.data.target_vocabulary.eos_id, tokens)


def translator_task(directory: Path, weights: exchange.Weights) -> TranslatorTask:
    """Return the task of a MarianMT or T5 model, which decodes as its generation_config.json, or config.json, says."""
    config = json_object(directory / "config.json")
    about = config | json_object(directory / generation_config.FILE, needed=False)
    entries, place = generation_config.entries(directory, config)
    vocabulary, sides = (marian_texts if weights.options.output_bias else t5_texts)(directory, weights, about)
    if weights.options.output_bias and [vocabulary.pad_id] not in (about.get("bad_words_ids") or []):
        # padding, which starts the decoder of published models, is never written
        weights.arrays["bias"] = weights.arrays["bias"].copy()
        weights.arrays["bias"][vocabulary.pad_id] = -1e9
    pair = make_pairs([[vocabulary.eos_id]], [[]], vocabulary, vocabulary, source_width=TRAINED)
    text = PairTexts([""], [""])
    data = PairData((pair,), (1,), {"test": pair}, {"test": text}, {}, vocabulary, vocabulary, *sides, facts={})
    end_ids = about.get("eos_token_id")
    ends = (vocabulary.eos_id, *(n for n in (end_ids if isinstance(end_ids, list) else ()) if n != vocabulary.eos_id))
    with explain_damage(place):
        search = generation_config.search_of(entries, place, ends)
    if unread := generation_config.check_entries(entries, place):
        print(f"note: not read in {place}: {', '.join(unread)}", file=sys.stderr)
    decode = configs.Decode(search.beams, max_length=search.longest or LONGEST)
    config = configs.Config(directory.name, configs.Corpus(), weights.options, decode=decode)
    return TranslatorTask(config, data, exchange.module_of(weights), search, ends)


def translator_vocabulary(directory: Path, weights: exchange.Weights) -> Vocabulary | None:
    """Return the vocabulary in the directory of a MarianMT or T5 model; None if there is none."""
    about = json_object(directory / "config.json", needed=False)
    about |= json_object(directory / generation_config.FILE, needed=False)
    if not (directory / ("vocab.json" if weights.options.output_bias else "tokenizer.json")).is_file():
        return None
    args = directory, weights, about
    return marian_vocabulary(*args) if weights.options.output_bias else t5_texts(*args)[0]


def marian_vocabulary(directory: Path, weights: exchange.Weights, about: dict) -> Vocabulary:
    """Return the vocabulary in vocab.json of a MarianMT model."""
    tokens = tokenizer.read_token_list(directory / "vocab.json", len(weights.arrays["bias"]))
    pad, begin, end = special_ids(directory, about, len(tokens) - 1, 0)
    return Vocabulary(tokens, pad=tokens[pad], bos=tokens[begin], eos=tokens[end], unk="<unk>")


def marian_texts(directory: Path, weights: exchange.Weights, about: dict) -> tuple[Vocabulary, list[Tokenizer]]:
    """Return the vocabulary and the tokenizers of both sides."""
    vocabulary = marian_vocabulary(directory, weights, about)
    source, target = (sentencepiece_of(directory / f"{side}.spm") for side in ("source", "target"))
    source, clean = source._replace(tokens=marian_source(source.tokens, directory)), tokenizer.cleanup_of(directory)
    return vocabulary, [source, target._replace(text=lambda tokens: clean(target.text(tokens)))]


def marian_source(pieces: Callable[[str], list[str]], directory: Path) -> Callable[[str], list[str]]:
    """Return the tokenizer of Marian's sources, in which special tokens and a code such as >>fra<< at the beginning are
    whole; InputError for an entry of tokenizer_config.json that makes other tokens."""
    special, place = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}, "tokenizer_config.json"
    settings = json_object(directory / place, needed=False)
    if tokenizer.content_of(settings.get("bos_token")) == BOS:  # it starts the decoder of a model that we export
        special["bos_token"] = BOS
    for name in ("separate_vocabs", "sp_model_kwargs", "split_special_tokens"):
        if settings.get(name):
            raise InputError(f"{name} {settings[name]!r} in {directory / place} is not supported: take it out")
    added = [
        (directory / place, "added_tokens_decoder", token)
        for token in (settings.get("added_tokens_decoder") or {}).values()
    ]
    for file, name, token in [*tokenizer.special_tokens_in(directory), *added]:
        if tokenizer.content_of(token) not in ([special[name]] if name in special else special.values()):
            raise InputError(
                f"{name} {token!r} in {file} is not supported: Marian's special tokens are "
                f"{', '.join(special.values())}"
            )

    def tokens(text: str) -> list[str]:
        tokens_of_text = []
        for span in re.split(f"({'|'.join(special.values())})", text):
            code = re.match(r"(?s)>>.*?<<", span)
            whole = span if span in special.values() else code[0] if code else ""
            tokens_of_text += [whole] * bool(whole) + pieces(span[len(whole) :])
        return tokens_of_text

    return tokens


def special_ids(directory: Path, about: dict, pad: int, end: int) -> tuple[int, int, int]:
    """Return the ids of padding, by default `pad`, of the decoder's first token, which is BOS where nothing says it, as
    in transformers, and of the first token that ends a text, by default `end`; InputError without one."""
    pad = pad if about.get("pad_token_id") is None else about["pad_token_id"]
    token_ids = (about.get("decoder_start_token_id"), about.get("bos_token_id"), pad)
    end = tokenizer.first_id(about.get("eos_token_id", end))
    if end is None:
        raise InputError(f"eos_token_id in {generation_config.FILE} or config.json of {directory} must be a token")
    return pad, next(number for number in token_ids if number is not None), end


def t5_texts(directory: Path, weights: exchange.Weights, about: dict) -> tuple[Vocabulary, list[Tokenizer]]:
    """Return the vocabulary and the tokenizer of a T5 model, one for both sides."""
    path, rows = directory / "tokenizer.json", len(weights.arrays["target_embedding/token/embedding"])
    if not path.is_file():
        raise InputError(
            f"a T5 model needs {path}; copy the whole directory of the model, or take the encoder, which needs none: "
            "load_pretrained(DIR, encoder_only=True)"
        )
    content = path.read_bytes()
    with explain_damage(path):
        tokenizer.check_tokenizer_config(directory, parse_tokenizer(content))
        vocab = vocabulary_of(content, rows)
        pad, begin, end = special_ids(directory, about, 0, 1)
        names = {name: vocab.tokens[number] for name, number in (("pad", pad), ("bos", begin), ("eos", end))}
        unknown = None if vocab.unk_id is None else vocab.tokens[vocab.unk_id]
        vocabulary = Vocabulary(vocab.tokens, **names, unk=unknown)
    if len(vocabulary) != rows:
        raise InputError(f"{path} has {len(vocabulary)} tokens, the model {rows}: are they of one model?")
    tokenizer_of_file = tokenizer_of_json(content)
    clean = tokenizer.cleanup_of(directory, parse_tokenizer(content))
    return vocabulary, [
        tokenizer_of_file,
        tokenizer_of_file._replace(text=lambda tokens: clean(tokenizer_of_file.text(tokens))),
    ]


def sentencepiece_of(path: Path) -> Tokenizer:
    """Return the sentencepiece tokenizer in a file."""
    if not path.is_file():
        raise InputError(f"a MarianMT model needs {path}; copy the whole directory of the model")
    return sentencepiece_model(str(path))[0]


class PretrainedTranslator(PretrainedTask):
    """A translation model: T5 needs tokenizer.json, MarianMT vocab.json, source.spm and target.spm."""

    build_task = staticmethod(translator_task)

    def translate(self, texts: Texts) -> list[str]:
        return self.predict(texts)
