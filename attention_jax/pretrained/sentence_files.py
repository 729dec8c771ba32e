"""The files of sentence-transformers in the directory of an encoder: how texts are prepared, embeddings
pooled and, where the last module is a classifier, logits computed from them."""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attention_jax.config import MaskedLanguageModelConfig
from attention_jax.errors import InputError, explain_damage
from attention_jax.pretrained.foreign_files import StoredTensor, json_object
from attention_jax.pretrained.tensors import read_tensors, safetensors_bytes

KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
NEUTRAL = {
    "transformer_task": ("feature-extraction",),
    "tokenizer_args": ({},),
    "tokenizer_kwargs": ({},),
    "processing_kwargs": ({},),
    "module_output_name": ("token_embeddings",),
}
"""{entry of sentence_bert_config.json: the values that change nothing}; others are refused."""
HARMLESS = (
    "model_args",
    "config_args",
    "model_kwargs",
    "config_kwargs",
    "cache_dir",
    "modality_config",
    "unpad_inputs",
)
"""How the library loads the model."""


class Sentences(NamedTuple):
    """How texts are changed and cut before they are embedded."""

    prompt: str = ""
    """What is put before each text."""
    stripped: bool = False
    """Whether spaces around a text are left out."""
    lower: bool = False
    most: int | None = None
    """The most tokens of a text, special ones included; the others are left out."""

    def preprocess(self, text: str) -> str:
        """The text that is tokenized.

        >>> Sentences("query: ", stripped=True, lower=True).preprocess("A dog ")
        'query: a dog'
        """
        text = (self.prompt + text).strip() if self.stripped else self.prompt + text
        return text.lower() if self.lower else text


def sentences(directory: Path, positions: int) -> Sentences:
    """What the files in the directory of an encoder with so many positions say; texts stay as they are where there are
    none of sentence-transformers.

    Without max_seq_length, or with null, the library cuts at the tokenizer's model_max_length. Raises InputError for an
    entry whose value is not supported.
    """
    files = [directory / f"sentence_{kind}_config.json" for kind in KINDS]
    path = next((file for file in files if file.is_file()), files[0])
    if not path.is_file() and not (directory / "modules.json").is_file():
        return Sentences()
    with explain_damage(path):
        return _sentences(directory, path, positions)


def _sentences(directory: Path, path: Path, positions: int) -> Sentences:
    settings, library = json_object(path, needed=False), directory / "config_sentence_transformers.json"
    for name, values in NEUTRAL.items():
        if settings.get(name, values[0]) not in (*values, None):
            raise InputError(f"{name} in {path} must be {values[0]!r}, is {settings[name]!r}")
    if unread := [name for name in settings if name not in (*NEUTRAL, *HARMLESS, "max_seq_length", "do_lower_case")]:
        print(f"note: not read in {path}: {', '.join(unread)}", file=sys.stderr)
    about = json_object(directory / "tokenizer_config.json", needed=False)
    most = settings.get("max_seq_length")
    if most is None:
        most = min(positions, int(about.get("model_max_length") or positions))
    if type(most) is not int or not 3 <= most <= positions:
        raise InputError(f"max_seq_length in {path} must be 3 to {positions}, the model's positions; is {most!r}")
    if about.get("truncation_side", "right") != "right":
        raise InputError(
            f"truncation_side in {directory / 'tokenizer_config.json'} must be right: texts lose their ends"
        )
    return Sentences(
        prompt_in(json_object(library, needed=False), library), True, bool(settings.get("do_lower_case")), most
    )


def prompt_in(settings: Mapping, path: Path) -> str:
    """The prompt that the library puts before every text, unless a call names another; InputError for one that is
    not there."""
    name, prompts = settings.get("default_prompt_name"), settings.get("prompts") or {}
    if name is not None and not isinstance(prompts.get(name), str):
        raise InputError(f"default_prompt_name {name!r} in {path} must be one of its prompts, {', '.join(prompts)}")
    return prompts[name] if name is not None else ""


POOLS = {"cls_token": "first", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "last"}
"""Poolings of sentence-transformers, pooling_mode_..., with their names here."""


def add_pooling(options: MaskedLanguageModelConfig, directory: Path) -> MaskedLanguageModelConfig:
    """The options with the sentence embedding that modules.json of sentence-transformers and the directory that it
    names say, which is what such a model is for: not the pooler. Without that file the mean, as there. Raises
    InputError for another pooling."""
    modules = directory / "modules.json"
    if not modules.is_file():
        return options
    steps = steps_in(modules)
    kinds = [kind for kind, _ in steps]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) and not (
        kinds == CLASSIFIER and is_classifier(directory, steps[2][1])
    ):
        raise InputError(
            f"{modules} must name Transformer, Pooling and at most Normalize, or a Dense with a bias and no activation "
            f"whose outputs are the classes in config.json; it names {', '.join(kinds)}"
        )
    place = steps[1][1] / "config.json"
    modes = json_object(place)
    chosen = [name.removeprefix("pooling_mode_") for name, value in modes.items() if value is True]
    chosen = [name for name in chosen if name != "include_prompt"]
    if newer := modes.get("pooling_mode"):  # a name, or several
        chosen = [{"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}.get(newer, str(newer))]
    if modes.get("include_prompt", True) is not True:
        raise InputError(f"include_prompt in {place} must be true: prompts are part of a text")
    if len(chosen) != 1 or chosen[0] not in POOLS:
        raise InputError(f"{place} must have one of {', '.join(POOLS)}, has {', '.join(chosen) or 'none'}")
    return dataclasses.replace(options, pool=POOLS[chosen[0]], unit_norm=kinds[-1] == "Normalize", pooler="none")


CLASSIFIER = ["Transformer", "Pooling", "Dense"]
"""The modules of a classifier of the sentence embedding, whose logits are what sentence-transformers encodes."""
IDENTITY = "torch.nn.modules.linear.Identity"


def steps_in(modules: Path) -> list[tuple[str, Path]]:
    """[(kind of a module, its directory), ...] in a modules.json; InputError for a directory that is not beside it."""
    with explain_damage(modules):
        entries = json.loads(modules.read_text(encoding="utf-8"))
        steps = [(str(entry["type"]).rpartition(".")[2], modules.parent / str(entry["path"])) for entry in entries]
    for _, place in steps:
        if not place.resolve().is_relative_to(modules.parent.resolve()):
            raise InputError(f"{modules} must name directories beside it, names {place}")
    return steps


def is_classifier(directory: Path, place: Path) -> bool:
    """Whether the module Dense in `place` maps the sentence embedding to the classes in config.json, linearly."""
    dense, labels = (json_object(path / "config.json", needed=False) for path in (place, directory))
    plain = dense.get("bias") is True and not dense.get("use_residual")
    plain = plain and str(dense.get("activation_function")).endswith(".Identity")
    return plain and dense.get("out_features") == len(labels.get("id2label") or ())


def classifier_in(directory: Path) -> dict[str, StoredTensor]:
    """The classifier of the sentence embedding that modules.json names, by our names; {} without one."""
    modules = directory / "modules.json"
    steps = steps_in(modules) if modules.is_file() else []
    if [kind for kind, _ in steps] != CLASSIFIER:
        return {}
    arrays = read_tensors(steps[2][1]).arrays
    with explain_damage(steps[2][1]):
        kernel, bias = arrays["linear.weight"], arrays["linear.bias"]  # [K, D], [K]
        return {"head/kernel": kernel.then(np.transpose, kernel.shape[::-1]), "head/bias": bias}


def module_files(options: MaskedLanguageModelConfig, kinds: Sequence[str]) -> dict[str, dict | list]:
    """modules.json with modules of these kinds, and the pooling of the options."""
    steps = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" * (i > 0), "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    pool = {f"pooling_mode_{mode}": pool_name == options.pool for mode, pool_name in POOLS.items()}
    width = {"word_embedding_dimension": options.hidden_size}
    return {"modules.json": steps, "1_Pooling/config.json": width | pool}


def pooling_files(options: MaskedLanguageModelConfig) -> dict[str, dict | list]:
    """The files of sentence-transformers for an encoder whose sentence embedding is not simply the mean."""
    if (options.pool, options.unit_norm) == ("mean", False):
        return {}
    return module_files(options, ["Transformer", "Pooling"] + ["Normalize"] * options.unit_norm)


def classifier_files(
    options: MaskedLanguageModelConfig, kernel: np.ndarray, bias: np.ndarray, most: int | None
) -> dict[str, dict | list | bytes]:
    """The files of sentence-transformers for an encoder whose classifier, `kernel` [D, K] and `bias` [K], reads the
    pooled states: the module Dense computes the logits. Texts are cut after `most` tokens, if this is not None."""
    inputs, outputs = kernel.shape
    dense = {"in_features": inputs, "out_features": outputs, "bias": True, "activation_function": IDENTITY}
    arrays = safetensors_bytes({"linear.weight": kernel.T, "linear.bias": bias}, {})
    cut = {} if most is None else {"sentence_bert_config.json": {"max_seq_length": most, "do_lower_case": False}}
    files = {"2_Dense/config.json": dense, "2_Dense/model.safetensors": arrays}
    return module_files(options, CLASSIFIER) | files | cut
