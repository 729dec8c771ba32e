"""How an encoder preprocesses texts, from the files of sentence-transformers in its directory."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from attention_jax.errors import InputError
from attention_jax.pretrained.tokenizer import damaged_tokenizer, json_object

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
    with damaged_tokenizer(path):
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
