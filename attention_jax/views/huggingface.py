"""Views of Hugging Face models in a local directory: ViT for images, MarianMT for texts. Nothing is downloaded."""

import json
from pathlib import Path

import numpy as np

from attention_jax import InputError, config as configs
from attention_jax.data.images import ImageData, Split
from attention_jax.data.pairs import PairData, Texts, Tokenizer, make_pairs
from attention_jax.data.tokenizers import sentencepiece_model
from attention_jax.data.vocabulary import Vocabulary
from attention_jax.tasks.seq2seq import Seq2seqTask
from attention_jax.tasks.vision import VisionTask
from attention_jax.views import View, view_of
from attention_jax.weights import exchange
from attention_jax.weights.vit_names import sizes_of

LONGEST = 128
"""Tokens of a translation, at most."""


def view(directory: Path | str) -> tuple[View, dict]:
    """Return the view of the model in `directory`, as `save_pretrained` writes it, and its parameters.

    A ViT needs model.safetensors and config.json; preprocessor_config.json has the mean and standard deviation of its
    channels. MarianMT also needs vocab.json, source.spm and target.spm. Raises InputError for other models, and where a
    file is missing.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise InputError(f"--hf needs the local directory of a model, with model.safetensors; got {directory}")
    weights = exchange.read(directory)
    task = translator(directory, weights) if isinstance(weights.options, configs.Transformer) else None
    task = classifier(directory, weights) if isinstance(weights.options, configs.Vit) else task
    if task is None:
        raise InputError(f"--hf reads ViT and MarianMT models; {directory} has a {type(weights.options).__name__}")
    return view_of(task), exchange.nested(weights.arrays)


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
    about, ids = facts(directory, "config.json"), facts(directory, "vocab.json")
    about |= facts(directory, "generation_config.json", needed=False)
    if sorted(ids.values()) != list(range(len(weights.arrays["bias"]))):
        raise InputError(
            f"{directory / 'vocab.json'} must number the {len(weights.arrays['bias'])} tokens of the model from 0; it "
            f"has {len(ids)}: copy it from the directory of the model"
        )
    tokens = sorted(ids, key=ids.get)
    pad = about.get("pad_token_id", len(tokens) - 1)
    begin, end = tokens[about.get("decoder_start_token_id", pad)], tokens[about.get("eos_token_id", 0)]
    if begin != tokens[pad]:
        raise InputError(f"Marian's decoder starts with padding; {directory} has decoder_start_token_id {ids[begin]}")
    weights.arrays["bias"] = weights.arrays["bias"].copy()
    weights.arrays["bias"][pad] = -1e9  # padding is never written: bad_words_ids
    vocabulary = Vocabulary(tokens, pad=begin, bos=begin, eos=end, unk="<unk>")
    sides = [tokenizer(directory / f"{side}.spm") for side in ("source", "target")]
    pair, text = make_pairs([[ids[end]]], [[]], vocabulary, vocabulary), Texts([end], [""])
    data = PairData((pair,), (1,), {"test": pair}, {"test": text}, {}, vocabulary, vocabulary, *sides, facts={})
    longest = min(about.get("max_length", LONGEST), LONGEST)
    decode = configs.Decode(int(about.get("num_beams", 1)), "simple", 1.0, max_length=longest)
    config = configs.Config(directory.name, configs.Corpus(), weights.options, decode=decode)
    return Seq2seqTask(config, data, exchange.module_of(weights))


def tokenizer(path: Path) -> Tokenizer:
    """Return the sentencepiece tokenizer in a file."""
    if not path.is_file():
        raise InputError(f"--hf needs {path} for a MarianMT model; copy the whole directory of the model")
    return sentencepiece_model(str(path))[0]
