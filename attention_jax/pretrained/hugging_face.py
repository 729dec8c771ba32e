"""A fine-tuned model goes back to Hugging Face: the directory that it came from, with the weights that it has now.

config.json is the original one but for what training has changed, and the files of the tokenizer are copied, so that
transformers reads the directory. A .gguf file becomes such a directory. A model that transformers does not have is
refused: the options of ours must be those of the original.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from attention_jax import config as configs
from attention_jax.data.pairs import PairData
from attention_jax.errors import InputError
from attention_jax.pretrained import gguf, tokenizer
from attention_jax.pretrained.config_json import ENTRIES, Facts
from attention_jax.pretrained.decoder_names import OUTPUT_BIAS
from attention_jax.pretrained.exchange import NAMINGS, Weights, detect_naming, export_arrays, open_weights, write_files
from attention_jax.pretrained.naming import Naming, differing_flags
from attention_jax.pretrained.sentence_files import KINDS
from attention_jax.pretrained.tensors import read_tensors

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt"),
    *("vocab.json", "merges.txt", "source.spm", "target.spm", "spiece.model", "tokenizer.model"),
    *("sentencepiece.bpe.model", "chat_template.jinja", "chat_template.json", "generation_config.json"),
)
OTHER_FILES = (
    "preprocessor_config.json",
    "config_sentence_transformers.json",
    *(f"sentence_{kind}_config.json" for kind in KINDS),
)
"""What else the directory of a model says of its inputs; a run has images and texts of its own."""
SIZES = ("architectures", "vocab_size", "image_size", "num_channels")
LABELS = ("id2label", "label2id")
STALE = ("torch_dtype", "dtype", "quantization_config", "_name_or_path")
"""Entries of the original config.json that need not be true of the new one, whose weights are float32."""
STALE_LABELS = ("num_labels", "_num_labels", "function_to_apply")
"""And those of another classifier."""
CLASSES = {
    "xlm-roberta": ("Roberta", "XLMRoberta"),
    "camembert": ("Roberta", "Camembert"),
    "deit": ("ViT", "DeiT"),
    "mt5": ("T5", "MT5"),
}
"""{model_type: (what the class of its family begins with, what its own does)}, where these differ"""
ALTERNATIVES = "export programs, --to stablehlo, or weights with own names, --to safetensors"


def write(weights: Weights, source: Path, directory: Path, is_run: bool) -> str:
    """Write the model, which is that of a run that began with the model in `source`, or this one itself, to a new
    directory, and return a one-line summary. Raises InputError for a model that transformers does not have."""
    contents = read_tensors(source)
    name = detect_naming(source, contents)
    if name not in NAMINGS or not NAMINGS[name].model_types or "model_type" not in contents.config:
        raise InputError(f"{source} is no model of Hugging Face, as --to huggingface needs: use --naming")
    if is_run and weights.data is None:
        raise InputError(f"{weights.source} stores neither a tokenizer nor names of classes: {ALTERNATIVES}")
    check_options(NAMINGS[name], source, weights.options, open_weights(source).options)
    files = tokenizer_files(source, weights)
    config = original_entries(source, contents.config, is_run)
    if name == "qwen2" and any(np.any(array) for path, array in weights.arrays.items() if path.endswith(OUTPUT_BIAS)):
        name, config = "llama", llama_config(config, weights)
    naming = NAMINGS[name]
    files |= naming.extra_files(weights.options, weights.arrays, weights.data)
    if isinstance(weights.data, PairData):
        config = naming.config_json(weights.options, weights.arrays, weights.data)
        if "vocab.json" not in files:
            raise InputError(
                f"{weights.source} has a vocabulary of its own, which transformers reads for a Marian with "
                f"--data.tokenizer sentencepiece --data.joint-vocabulary only: {ALTERNATIVES}"
            )
    files["config.json"] = config | entries_of(naming, config["model_type"], weights, is_run)
    arrays = export_arrays(naming, weights, Facts(contents.config))
    if config["model_type"] == "deit":
        arrays = {re.sub(r"^vit\.", "deit.", tensor): array for tensor, array in arrays.items()}
    return f"{write_files(directory, 'safetensors', arrays, files, {})}, for {reader_of(files)}"


def check_options(naming: Naming, source: Path, options: configs.ModelOptions, original: configs.ModelOptions):
    """Raise InputError for options of a model that are not those of the original, but for those of training and of the
    classifier."""
    if type(options) is not type(original):
        raise InputError(f"the run has a {configs.model_name(options)}, {source} another model: {ALTERNATIVES}")
    expected = {name: value for name, info, value in configs.walk(original) if not info.training_only}
    if flags := differing_flags(options, expected | naming.classifier_options):
        raise InputError(f"transformers has no model like {source} with {', '.join(flags)}: {ALTERNATIVES}")


def original_entries(source: Path, config: dict, is_run: bool) -> dict:
    """Return the entries of the original config.json that stay true; of the header of a .gguf file those that have a
    name in config.json."""
    stale = (*STALE, *(STALE_LABELS if is_run else ()))
    if source.suffix == gguf.SUFFIX:
        names = ENTRIES[config["model_type"]].keys() | {"model_type"}
        config = {name: value for name, value in config.items() if name in names or name.endswith("_token_id")}
    return {name: value for name, value in config.items() if name not in stale}


def llama_config(config: dict, weights: Weights) -> dict:
    """Return the config.json of a Qwen 2 as that of the Llama that computes the same: our output layers of attention
    have a bias, which training changes, and Llama's may have one. Raises InputError for a Qwen 2 with windows."""
    if weights.options.per_layer:
        raise InputError(f"qwen2 has no bias of the output of attention, which training has changed: {ALTERNATIVES}")
    same = {
        name: value for name, value in config.items() if re.fullmatch(r"\w+_token_id|max_position_embeddings", name)
    }
    return same | NAMINGS["llama"].config_json(weights.options, weights.arrays)


def entries_of(naming: Naming, model_type: str, weights: Weights, is_run: bool) -> dict:
    """Return the entries of config.json that are not the original ones: the class of the model, sizes that follow from
    the data, and of a run the names of its classes."""
    entries = naming.config_json(weights.options, weights.arrays, weights.data)
    entries = {name: value for name, value in entries.items() if name in (*SIZES, *(LABELS if is_run else ()))}
    family, library = CLASSES.get(model_type, ("", ""))
    entries["architectures"] = [re.sub(f"^{family}", library, name) for name in entries["architectures"]]
    return entries | ({"problem_type": "single_label_classification"} if "id2label" in entries else {})


def tokenizer_files(source: Path, weights: Weights) -> dict[str, Any]:
    """Return the files of the tokenizer, byte for byte, and without a run also those of images and of sentences; of
    translations none, as their vocabulary is that of the run.

    Raises InputError if the run has another tokenizer.
    """
    if isinstance(weights.data, PairData):
        return {}
    if source.suffix == gguf.SUFFIX:
        files = gguf_tokenizer_files(source)
    else:
        directory = source if source.is_dir() else source.parent
        names = TOKENIZER_FILES + (OTHER_FILES if weights.data is None else ())
        files = {name: (directory / name).read_bytes() for name in names if (directory / name).is_file()}
    if hasattr(weights.data, "tokenizer"):
        recipe = weights.data.tokenizer.recipe
        if recipe[:2] != ("pretrained", files.get("tokenizer.json")):
            raise InputError(
                f"{weights.source} has another tokenizer than {source} has now: put the first one back, or "
                + ALTERNATIVES
            )
    return files


def gguf_tokenizer_files(path: Path) -> dict[str, Any]:
    """Return the files of the tokenizer in the header of a .gguf file, as transformers reads them."""
    fields = gguf.header_of(path).fields
    library, special = tokenizer.tokenizers_of_gguf(path, fields)
    added = {token.content for token in library.get_added_tokens_decoder().values()}
    tokens = {f"{name}_token": library.id_to_token(number) for name, number in special.items()}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings |= {name: token for name, token in tokens.items() if token in added}
    if template := fields.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    generation = {f"{name}_token_id": special[name] for name in ("bos", "pad") if name in special}
    return {
        "tokenizer.json": library.to_str().encode(),
        "tokenizer_config.json": settings,
        "generation_config.json": generation | {"eos_token_id": list(tokenizer.ends_of_gguf(fields))},
    }


def reader_of(files: dict) -> str:
    """Return the class that reads the directory with these files."""
    if "2_Dense/config.json" in files:
        return "sentence_transformers.SentenceTransformer, whose encode returns the logits"
    return f"transformers.{files['config.json']['architectures'][0]}"
