"""Views of Hugging Face models in a local directory that are tasks of runs here, too: ViT, MarianMT and T5."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from attention_jax import config as configs
from attention_jax.data import image_files, pretrained_tokenizer
from attention_jax.data.images import ImageData, Split
from attention_jax.data.pairs import PairData, Texts, make_pairs, pad_rows
from attention_jax.data.tokenizers import sentencepiece_model
from attention_jax.data.vocabulary import Tokenizer, Vocabulary
from attention_jax.decode import apply_generation_rules, greedy, pooled_beam_search
from attention_jax.errors import InputError
from attention_jax.pretrained import exchange, generation_config, image_recipe
from attention_jax.pretrained.tokenizer import (
    check_tokenizer_config,
    cleanup_of,
    content_of,
    first_id,
    special_tokens_in,
)
from attention_jax.pretrained.vit_names import sizes_of
from attention_jax.tasks.generation import start_decoding
from attention_jax.tasks.seq2seq import Seq2seqTask
from attention_jax.tasks.vision import VisionTask
from attention_jax.views import FUNCTIONS, View
from attention_jax.views.seq2seq import Seq2seqView
from attention_jax.views.vision import VisionView

LONGEST = 128
"""Tokens of a translation, at most, of a model whose files do not say it."""
TRAINED = 512
"""The longest sources that Marian and T5 were trained on, in tokens."""


def view(directory: Path, weights: exchange.Weights) -> View:
    """Return the view of a ViT, MarianMT or T5 model in a directory, as `save_pretrained` writes it.

    For a ViT, preprocessor_config.json says how images are prepared; T5 needs tokenizer.json, MarianMT vocab.json,
    source.spm and target.spm. Raises InputError where a file is missing.
    """
    directory = directory if directory.is_dir() else directory.parent
    if isinstance(weights.options, configs.ViTConfig):
        return classifier(directory, weights)
    return translator(directory, weights)


def read_facts(directory: Path, name: str, needed: bool = True) -> dict:
    """Return the JSON object in a file of the directory, or {} if there is none and it is not `needed`."""
    path = directory / name
    if not path.is_file() and not needed:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is no object")
        return content
    except (OSError, ValueError) as error:
        raise InputError(f"{path} must be a JSON object ({error}); copy the whole directory of the model") from error


def read_token_list(directory: Path, count: int) -> list[str]:
    """Return the `count` tokens of vocab.json in the order of their numbers."""
    ids = read_facts(directory, "vocab.json")
    if len(ids) != count or {number for number in ids.values() if type(number) is int} != {*range(count)}:
        raise InputError(
            f"{directory / 'vocab.json'} must number the {count} tokens of the model from 0; it has {len(ids)}: copy "
            "it from the directory of the model"
        )
    return sorted(ids, key=ids.get)


@dataclass(frozen=True, eq=False)
class ClassifierView(VisionView):
    """The view of a vision model whose files say how images are prepared, and what its logits are."""

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
            read_facts(directory, image_recipe.FILE), str(about.get("model_type", "vit"))
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


def classifier(directory: Path, weights: exchange.Weights) -> ClassifierView:
    """Return the view of a ViT."""
    size, channels, classes = sizes_of(weights.options, weights.arrays)
    about = read_facts(directory, "config.json", needed=False)
    labels, recipe = about.get("id2label") or {}, recipe_in(directory, about, size)
    for name, values in (("image_mean", recipe.mean), ("image_std", recipe.deviation)):
        if np.shape(values) not in ((), (channels,)):
            raise InputError(f"{name} in {image_recipe.FILE} must be one number or {channels}, has {len(values)}")
    mean, deviation = (np.broadcast_to(np.float32(x), channels) for x in (recipe.mean, recipe.deviation))
    placeholder = Split(np.zeros((1, size, size, channels), np.uint8), np.zeros(1, np.int32))
    names = tuple(str(labels.get(str(number), number)) for number in range(classes))
    data = ImageData(placeholder, {"test": placeholder}, names, normalization=(mean, deviation))
    config = configs.Config(directory.name, configs.Images("folder"), weights.options)
    task = VisionTask(config, data, exchange.module_of(weights))
    return ClassifierView(task, recipe, weights.function)


@dataclass(frozen=True, eq=False)
class TranslatorView(Seq2seqView):
    """The view of an encoder-decoder whose files say how it generates, as transformers does it."""

    search: generation_config.Search
    ends: tuple[int, ...]
    """The tokens that end a text."""

    def read(self, texts: list[str]) -> dict[str, np.ndarray]:
        """Encode the sources as the model's library does: special tokens that a text spells are these tokens."""
        vocabulary, tokenizer = self.data.source_vocabulary, self.data.source_tokenizer
        rows = [[*vocabulary.encode(tokenizer.tokens(text)), vocabulary.eos_id] for text in texts]
        source, length = pad_rows(rows, vocabulary.pad_id, None)
        return {"source": source, "source_length": length}

    def start(self, params, batch) -> tuple[Callable, Any, dict]:
        """Return the step and the cache of decoding under the rules of the files, and what both ways need."""
        limits, count = self.task.decoding_limits, batch["source"].shape[0]
        step, cache = start_decoding(self.model, params, batch, limits["max_length"])
        decode_args = {"bos": limits["bos"], "ends": self.ends, "max_length": limits["max_length"]}
        if self.search.rules != generation_config.Rules():
            step, cache = apply_generation_rules(
                step, cache, count, self.search.rules, **decode_args, beams=self.search.beams > 1
            )
        return step, cache, decode_args | {"batch_size": count, "pad": limits["pad"]}

    def greedy(self, params, batch):
        step, cache, decode_args = self.start(params, batch)
        return self.unify_ends(greedy(step, cache, eos=decode_args.pop("ends"), **decode_args))

    def generate(self, params, batch):
        return self.greedy(params, batch) if self.search.beams == 1 else self.best(params, batch, 1)[0][:, 0]

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


def translator(directory: Path, weights: exchange.Weights) -> TranslatorView:
    """Return the view of a MarianMT or T5 model, which decodes as its generation_config.json, or config.json, says."""
    config = read_facts(directory, "config.json")
    about = config | read_facts(directory, generation_config.FILE, needed=False)
    entries, place = generation_config.entries(directory, config)
    vocabulary, sides = (marian_texts if weights.options.output_bias else t5_texts)(directory, weights, about)
    pair = make_pairs([[vocabulary.eos_id]], [[]], vocabulary, vocabulary, source_width=TRAINED)
    text = Texts([""], [""])
    data = PairData((pair,), (1,), {"test": pair}, {"test": text}, {}, vocabulary, vocabulary, *sides, facts={})
    end_ids = about.get("eos_token_id")
    ends = (vocabulary.eos_id, *(n for n in (end_ids if isinstance(end_ids, list) else ()) if n != vocabulary.eos_id))
    with pretrained_tokenizer.report_damage(Path(place)):
        search = generation_config.search_of(entries, place, ends)
    if unread := generation_config.check_entries(entries, place):
        print(f"note: not read in {place}: {', '.join(unread)}", file=sys.stderr)
    decode = configs.Decode(search.beams, max_length=search.longest or LONGEST)
    config = configs.Config(directory.name, configs.Corpus(), weights.options, decode=decode)
    return TranslatorView(Seq2seqTask(config, data, exchange.module_of(weights)), search, ends)


def marian_texts(directory: Path, weights: exchange.Weights, about: dict) -> tuple[Vocabulary, list[Tokenizer]]:
    """Return the vocabulary and the tokenizers of both sides; padding, which starts the decoder, is never written."""
    tokens = read_token_list(directory, len(weights.arrays["bias"]))
    pad, begin, end = special_ids(directory, about, len(tokens) - 1, 0)
    begin, end = tokens[begin], tokens[end]
    if begin != tokens[pad]:
        raise InputError(
            f"Marian's decoder starts with padding; {directory} has decoder_start_token_id {tokens.index(begin)}"
        )
    if [pad] not in (about.get("bad_words_ids") or []):  # it is there in published files
        weights.arrays["bias"] = weights.arrays["bias"].copy()
        weights.arrays["bias"][pad] = -1e9
    vocabulary = Vocabulary(tokens, pad=begin, bos=begin, eos=end, unk="<unk>")
    source, target = (tokenizer(directory / f"{side}.spm") for side in ("source", "target"))
    source, clean = source._replace(tokens=marian_source(source.tokens, directory)), cleanup_of(directory)
    return vocabulary, [source, target._replace(text=lambda tokens: clean(target.text(tokens)))]


def marian_source(pieces: Callable[[str], list[str]], directory: Path) -> Callable[[str], list[str]]:
    """Return the tokenizer of Marian's sources, in which special tokens and a code such as >>fra<< at the beginning are
    whole; InputError for an entry of tokenizer_config.json that makes other tokens."""
    special, place = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}, "tokenizer_config.json"
    settings = read_facts(directory, place, needed=False)
    for name in ("separate_vocabs", "sp_model_kwargs", "split_special_tokens"):
        if settings.get(name):
            raise InputError(f"{name} {settings[name]!r} in {directory / place} is not supported: take it out")
    added = [
        (directory / place, "added_tokens_decoder", token)
        for token in (settings.get("added_tokens_decoder") or {}).values()
    ]
    for file, name, token in [*special_tokens_in(directory), *added]:
        if content_of(token) not in ([special[name]] if name in special else special.values()):
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
    end = first_id(about.get("eos_token_id", end))
    if end is None:
        raise InputError(f"eos_token_id in {generation_config.FILE} or config.json of {directory} must be a token")
    return pad, next(number for number in token_ids if number is not None), end


def t5_texts(directory: Path, weights: exchange.Weights, about: dict) -> tuple[Vocabulary, list[Tokenizer]]:
    """Return the vocabulary and the tokenizer of a T5 model, one for both sides."""
    path, rows = directory / "tokenizer.json", len(weights.arrays["target_embedding/token/embedding"])
    if not path.is_file():
        raise InputError(f"a T5 model needs {path}; copy the whole directory of the model")
    content = path.read_bytes()
    with pretrained_tokenizer.report_damage(path):
        check_tokenizer_config(directory, pretrained_tokenizer.parse_tokenizer(content))
        vocab = pretrained_tokenizer.vocabulary_of(content, rows)
        pad, begin, end = special_ids(directory, about, 0, 1)
        names = {name: vocab.tokens[number] for name, number in (("pad", pad), ("bos", begin), ("eos", end))}
        unknown = None if vocab.unk_id is None else vocab.tokens[vocab.unk_id]
        vocabulary = Vocabulary(vocab.tokens, **names, unk=unknown)
    if len(vocabulary) != rows:
        raise InputError(f"{path} has {len(vocabulary)} tokens, the model {rows}: are they of one model?")
    tokenizer_of_file = pretrained_tokenizer.tokenizer_of_json(content)
    clean = cleanup_of(directory, pretrained_tokenizer.parse_tokenizer(content))
    return vocabulary, [
        tokenizer_of_file,
        tokenizer_of_file._replace(text=lambda tokens: clean(tokenizer_of_file.text(tokens))),
    ]


def tokenizer(path: Path) -> Tokenizer:
    """Return the sentencepiece tokenizer in a file."""
    if not path.is_file():
        raise InputError(f"a MarianMT model needs {path}; copy the whole directory of the model")
    return sentencepiece_model(str(path))[0]
