"""How a pretrained model generates: generation_config.json or, without it, the entries of config.json, as transformers
reads them. Each entry is honored, changes nothing, or raises an error with its name."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attention_jax.errors import InputError
from attention_jax.pretrained import gguf, tensors
from attention_jax.pretrained.foreign_files import json_object

FILE = "generation_config.json"
SAMPLING = {
    "min_p": (None, 0),
    "top_h": (None,),
    "typical_p": (None, 1),
    "epsilon_cutoff": (None, 0),
    "eta_cutoff": (None, 0),
}
"""{entry that matters where tokens are sampled: the values that change nothing}; others are refused."""
NEUTRAL = {
    "encoder_repetition_penalty": (None, 1),
    "encoder_no_repeat_ngram_size": (None, 0),
    "num_beam_groups": (None, 1),
    "diversity_penalty": (None, 0),
    "num_return_sequences": (None, 1),
    "penalty_alpha": (None, 0),
    "dola_layers": (None,),
    "guidance_scale": (None, 1),
    "sequence_bias": (None, {}, []),
    "exponential_decay_length_penalty": (None,),
    "constraints": (None, []),
    "force_words_ids": (None, []),
    "stop_strings": (None, [], ""),
    "max_time": (None,),
    "token_healing": (None, False),
    "watermarking_config": (None, {}),
}
"""{entry: the values that change nothing}; others are refused."""
CONSTRAINTS = {
    "num_beams": (None, 1),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "no_repeat_ngram_size": (None, 0),
    "bad_words_ids": (None, []),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
}
"""{entry: the values that change nothing}: a translator honors them, a language model rejects other values."""
HONORED = (
    "max_length|max_new_tokens|do_sample|temperature|top_k|top_p|repetition_penalty|length_penalty|early_stopping|"
    "renormalize_logits|(bos|eos|pad|decoder_start)_token_id"
)
HARMLESS = (
    "transformers_version|_from_model_config|_commit_hash|is_assistant|"  # names
    "use_cache|cache_\\w+|max_cache_len|low_memory|prefill_chunk_size|compile_config|disable_compile|"  # the way of it
    "continuous_batching_config|remove_invalid_values|output_\\w+|return_dict_in_generate|"  # what it returns besides
    "num_assistant\\w+|assistant_\\w+|target_lookbehind|prompt_lookup_num_tokens|max_matching_ngram_size|use_mtp|"
    "speculation_type"  # a draft, whose text is that without one
)


class Search(NamedTuple):
    """How a translator searches; hashable, as it is part of a compiled program."""

    beams: int
    alpha: float
    """Exponent of the length penalty."""
    early_stopping: bool | str
    longest: int | None
    """The most tokens to write; None where nothing says it."""
    renormalize: bool
    rules: "Rules"


class Rules(NamedTuple):
    """What a model may write; lengths are of the written tokens."""

    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    banned: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that are not completed."""
    shortest: int = 0
    """Tokens before the first one that may end a text."""
    first: int | None = None
    last: int | None = None
    """The token that is written as the first, and as the last if nothing else has ended the text before."""
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()


def entries(directory: Path, config: Mapping[str, Any]) -> tuple[dict, str]:
    """The entries that say how a model in a directory generates, and the name of their file, for messages."""
    path = directory / FILE
    if path.is_file():
        return json_object(path), str(path)
    names = f"{HONORED}|{'|'.join([*SAMPLING, *NEUTRAL, *CONSTRAINTS])}"
    return {name: value for name, value in config.items() if re.fullmatch(names, name)}, str(directory / "config.json")


def check_entries(entries: Mapping[str, Any], place: str, *tables: Mapping[str, tuple]) -> list[str]:
    """The entries that are not known; InputError for one of the tables with a value that is not supported."""
    for name, values in [pair for table in tables for pair in table.items()]:
        if entries.get(name) not in values:
            raise InputError(
                f"{name} {entries[name]!r} in {place} is not supported: generate without it, and take it out"
            )
    supported = f"{HONORED}|{HARMLESS}|{'|'.join([*SAMPLING, *NEUTRAL, *CONSTRAINTS])}"
    return [name for name, value in entries.items() if value is not None and not re.fullmatch(supported, name)]


def search_of(entries: Mapping[str, Any], place: str, ends: Sequence[int]) -> Search:
    """The search of an encoder-decoder whose files say this.

    The decoder's first token counts in max_length and min_length. Raises InputError for what is not supported, such as
    sampling.
    """
    check_entries(entries, place, NEUTRAL, {"do_sample": (None, False)})
    number = lambda name, usual: usual if entries.get(name) is None else entries[name]
    longest = entries.get("max_new_tokens")
    if longest is None and entries.get("max_length") is not None:
        longest = entries["max_length"] - 1
    shortest = number("min_new_tokens", max(number("min_length", 0) - 1, 0))
    beams, alpha, stopping = (
        number("num_beams", 1),
        float(number("length_penalty", 1.0)),
        number("early_stopping", False),
    )
    for name, value, is_valid in (
        ("num_beams", beams, type(beams) is int and beams >= 1),
        ("early_stopping", stopping, stopping in (True, False, "never")),
        ("max_length", longest, longest is None or (type(longest) is int and longest >= 1)),
    ):
        if not is_valid:
            raise InputError(f"{name} in {place} is {value!r}, which is no value of it")
    banned = tuple(tuple(map(int, sequence)) for sequence in number("bad_words_ids", []))
    rules = Rules(
        float(number("repetition_penalty", 1.0)),
        int(number("no_repeat_ngram_size", 0)),
        tuple(
            sequence for sequence in banned if sequence not in [(end,) for end in ends]
        ),  # the library leaves these out
        int(shortest),
        entries.get("forced_bos_token_id"),
        first_of(entries.get("forced_eos_token_id"), place),
        tuple(number("suppress_tokens", [])),
        tuple(number("begin_suppress_tokens", [])),
    )
    return Search(beams, alpha, stopping, longest, bool(entries.get("renormalize_logits")), rules)


def first_of(number, place: str) -> int | None:
    """A number, or the only one of a list; InputError for several."""
    numbers = number if isinstance(number, list) else [number]
    if len(numbers) != 1:
        raise InputError(f"forced_eos_token_id in {place} must be one token, is {number}")
    return numbers[0]


def sampling_of(entries: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The options of `config.Generation` that the files of a language model say; `total` is the length with the prompt.

    >>> sampling_of({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_new_tokens": 5}, "")
    {'repetition_penalty': 1.0, 'temperature': 0.6, 'top_k': 50, 'top_p': 0.9, 'length': 5}
    >>> sampling_of({"temperature": 0.6, "max_length": 9}, "")
    {'repetition_penalty': 1.0, 'total': 9}
    """
    check_entries(entries, place, NEUTRAL, CONSTRAINTS, SAMPLING if entries.get("do_sample") else {})
    number = lambda name, usual: usual if entries.get(name) is None else entries[name]
    options: dict[str, Any] = {"repetition_penalty": number("repetition_penalty", 1.0)}
    if entries.get("do_sample"):
        usual = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}  # the library's
        options |= {name: number(name, value) for name, value in usual.items()}
    if entries.get("max_new_tokens") is not None:
        return options | {"length": entries["max_new_tokens"]}
    return options | ({} if entries.get("max_length") is None else {"total": entries["max_length"]})


def sampling_in(path: Path) -> dict[str, Any]:
    """`sampling_of` of the language model in a directory, or in a .gguf file, whose header may recommend a sampler."""
    if path.suffix == gguf.SUFFIX and path.is_file():
        return sampling_of(sampler_of_header(gguf.header_of(path).fields, str(path)), str(path))
    return sampling_of(*entries(path if path.is_dir() else path.parent, tensors.config_of(path)))


def sampler_of_header(fields: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The sampler in the header of a .gguf file in the words of generation_config.json, with llama.cpp's temperature
    of 0.8 where it names none; {} for a header without one. InputError for a sampler that is not here.

    >>> sampler_of_header({"general.sampling.top_k": 20, "general.sampling.temp": 0.5}, "")
    {'top_k': 20, 'temperature': 0.5, 'do_sample': True}
    """
    entries = {name.rpartition(".")[2]: value for name, value in fields.items() if name.startswith("general.sampling.")}
    for name, value in {"mirostat": 0, "xtc_probability": 0, "penalty_repeat": 1}.items():
        if entries.get(name, value) != value:
            raise InputError(f"general.sampling.{name} {entries[name]} in {place} is not supported: it must be {value}")
    options = {name: entries[name] for name in ("top_k", "top_p", "min_p") if name in entries}
    temperature = entries.get("temp", 0.8)
    return {**options, "temperature": temperature, "do_sample": temperature > 0} if entries else {}
