"""Views of Hugging Face models in a local directory: ViT for images, MarianMT and GPT-2 for texts. Nothing
is downloaded."""

import json
import sys
from pathlib import Path

import numpy as np

from attention_jax import config as configs
from attention_jax.data.byte_pairs import byte_level_bpe
from attention_jax.data.images import ImageData, Split
from attention_jax.data.pairs import PairData, Texts, Tokenizer, make_pairs
from attention_jax.data.text_windows import Windows
from attention_jax.data.tokenizers import read_merges, sentencepiece_model
from attention_jax.data.vocabulary import Vocabulary
from attention_jax.errors import InputError
from attention_jax.tasks.language import LanguageTask
from attention_jax.tasks.seq2seq import Seq2seqTask
from attention_jax.tasks.vision import VisionTask
from attention_jax.views import View, view_of
from attention_jax.weights import exchange
from attention_jax.weights.vit_names import sizes_of

LONGEST = 128
"""Tokens of a translation, at most."""
END_OF_TEXT = "<|endoftext|>"
"""GPT-2's only special token."""


def view(directory: Path | str) -> tuple[View, dict]:
    """Return the view of the model in `directory`, as `save_pretrained` writes it, and its parameters.

    A ViT needs model.safetensors and config.json; preprocessor_config.json has the mean and standard deviation of its
    channels. MarianMT also needs vocab.json, source.spm and target.spm, GPT-2 vocab.json and merges.txt. Raises
    InputError for other models, and where a file is missing.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise InputError(f"--hf needs the local directory of a model, with model.safetensors; got {directory}")
    weights = exchange.read(directory)
    makers = {
        configs.ViTConfig: classifier,
        configs.TransformerConfig: translator,
        configs.LanguageModelConfig: language_model,
    }
    kind = type(weights.options)
    if kind not in makers:
        raise InputError(f"--hf reads ViT, MarianMT and GPT-2 models; {directory} has a {kind.__name__}")
    found = view_of(makers[kind](directory, weights))
    if weights.note:
        print(f"note: {weights.source}", file=sys.stderr)
    return found, exchange.nested(weights.arrays)


def facts(directory: Path, name: str, needed: bool = True) -> dict:
    """Return the JSON object in a file of the directory, or {} if there is none and it is not `needed`."""
    path = directory / name
    if not path.is_file() and not needed:
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it is no object")
        return found
    except (OSError, ValueError) as error:
        raise InputError(
            f"--hf needs {path}, a JSON object ({error}); copy the whole directory of the model"
        ) from error


def numbered(directory: Path, count: int) -> list[str]:
    """Return the `count` tokens of vocab.json in the order of their numbers."""
    ids = facts(directory, "vocab.json")
    if len(ids) != count or {number for number in ids.values() if type(number) is int} != {*range(count)}:
        raise InputError(
            f"{directory / 'vocab.json'} must number the {count} tokens of the model from 0; it has {len(ids)}: copy "
            "it from the directory of the model"
        )
    return sorted(ids, key=ids.get)


def classifier(directory: Path, weights: exchange.Weights) -> VisionTask:
    """Return the task of a ViT, which reads the middle square of an image."""
    size, channels, classes = sizes_of(weights.options, weights.arrays)
    labels = facts(directory, "config.json", needed=False).get("id2label", {})
    recipe = facts(directory, "preprocessor_config.json", needed=False)
    mean, deviation = (np.broadcast_to(np.float32(recipe.get(f"image_{x}", 0.5)), channels) for x in ("mean", "std"))
    one = Split(np.zeros((1, size, size, channels), np.uint8), np.zeros(1, np.int32))
    names = tuple(str(labels.get(str(number), number)) for number in range(classes))
    data = ImageData(one, {"test": one}, names, normalization=(mean, deviation))
    config = configs.Config(directory.name, configs.Images("folder"), weights.options)
    return VisionTask(config, data, exchange.module_of(weights))


def translator(directory: Path, weights: exchange.Weights) -> Seq2seqTask:
    """Return the task of a MarianMT model, which decodes by beam search as its config.json says."""
    about = facts(directory, "config.json") | facts(directory, "generation_config.json", needed=False)
    tokens = numbered(directory, len(weights.arrays["bias"]))
    pad = about.get("pad_token_id", len(tokens) - 1)
    begin, end = tokens[about.get("decoder_start_token_id", pad)], tokens[about.get("eos_token_id", 0)]
    if begin != tokens[pad]:
        raise InputError(
            f"Marian's decoder starts with padding; {directory} has decoder_start_token_id {tokens.index(begin)}"
        )
    weights.arrays["bias"] = weights.arrays["bias"].copy()
    weights.arrays["bias"][pad] = -1e9  # padding is never written: bad_words_ids
    vocabulary = Vocabulary(tokens, pad=begin, bos=begin, eos=end, unk="<unk>")
    sides = [tokenizer(directory / f"{side}.spm") for side in ("source", "target")]
    pair, text = make_pairs([[tokens.index(end)]], [[]], vocabulary, vocabulary), Texts([end], [""])
    data = PairData((pair,), (1,), {"test": pair}, {"test": text}, {}, vocabulary, vocabulary, *sides, facts={})
    longest = min(about.get("max_length", LONGEST), LONGEST)
    decode = configs.Decode(int(about.get("num_beams", 1)), "simple", 1.0, max_length=longest)
    config = configs.Config(directory.name, configs.Corpus(), weights.options, decode=decode)
    return Seq2seqTask(config, data, exchange.module_of(weights))


def language_model(directory: Path, weights: exchange.Weights) -> LanguageTask:
    """Return the task of GPT-2, which reads the given text and adds nothing to it."""
    tokens, merges = numbered(directory, len(weights.arrays["embedding/token/embedding"])), directory / "merges.txt"
    if not merges.is_file():
        raise InputError(f"--hf needs {merges} for a GPT-2 model; copy the whole directory of the model")
    tokenizer = byte_level_bpe(read_merges(str(merges)), [END_OF_TEXT] if END_OF_TEXT in tokens else [])
    data = Windows(np.zeros((1, 2), np.int32), {}, Vocabulary(tokens), tokenizer, facts={})
    config = configs.Config(directory.name, configs.TextFile(), weights.options, decode=configs.Sampling(length=0))
    return LanguageTask(config, data, exchange.module_of(weights))


def tokenizer(path: Path) -> Tokenizer:
    """Return the sentencepiece tokenizer in a file."""
    if not path.is_file():
        raise InputError(f"--hf needs {path} for a MarianMT model; copy the whole directory of the model")
    return sentencepiece_model(str(path))[0]
