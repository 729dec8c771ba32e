"""Tokenizers of pretrained models, for the models and for datasets: tokenizer.json, the vocabulary inside a GGUF file,
or GPT-2's two files.

The first two need the `tokenizers` library (an extra). What a GGUF file says by name only, how text is split before
merges, is a list here of the published tokenizers' own patterns.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_jax.data.tokenizers import (
    byte_characters,
    byte_level_bpe,
    parse_tokenizer,
    read_merges,
    token_names,
    tokenizer_of_json,
    tokenizers_library,
    vocabulary_of,
)
from attention_jax.data.vocabulary import Tokenizer, Vocabulary
from attention_jax.errors import InputError, explain_damage
from attention_jax.pretrained import gguf
from attention_jax.pretrained.config_json import Facts
from attention_jax.pretrained.foreign_files import json_object

SPACE = "\u2581"
"""sentencepiece's sign of a space, which the pages of attention maps know."""
NAMES = ("bos", "eos", "pad", "mask", "unk")
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern of Llama 3 (three digits) and of Qwen (one)."""
SPLITS = {"gpt-2": None, "smollm": "digits", "qwen2": WORDS % ""}
SPLITS |= dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), WORDS % "{1,3}")
"""{tokenizer.ggml.pre: how the text is split before the merges}; None is GPT-2's pattern."""
ENDS = {
    "eos": (),
    "eot": (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
        *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>"),
        *("<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    ),
    "eom": (),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""{tokenizer.ggml.NAME_token_id that ends a text: tokens that end one by their spelling}, as llama.cpp has them (2026);
those of `fim_...` count where the file has no such id."""
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
"""What a token of added_tokens_decoder may say besides its text."""
END_OF_TEXT = "<|endoftext|>"
"""GPT-2's only special token."""
CONTROL, USER_DEFINED = 3, 4
"""Types of tokens in a GGUF file."""


@dataclass(frozen=True, eq=False)
class PretrainedTokenizer:
    """The tokenizer of a pretrained model: texts to ids and back, with the ids of its special tokens or None."""

    names: tuple[str, ...]
    """The tokens by id, as the file spells them."""
    to_ids: Callable[[str, bool], list[int]]
    """(text, whether to add special tokens around it) -> ids"""
    to_text: Callable[[Sequence[int]], str]
    byte_level: bool
    """Whether the characters of tokens are bytes (`byte_characters`), as GPT-2's are."""
    special: dict[str, int]
    """{"eos": 2, ...} as far as the files name them."""
    ends: tuple[int, ...] = ()
    """The tokens that end a text."""

    def __repr__(self) -> str:
        return f"PretrainedTokenizer({len(self.names)} tokens, special: {self.special})"

    @property
    def mask(self) -> int | None:
        return self.special.get("mask")

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of a text, with the `special` tokens that the file adds around it; a lone surrogate is a "?"."""
        return self.to_ids(text.encode("utf-8", errors="replace").decode("utf-8"), special)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens and without ids that have no token."""
        return self.to_text([int(number) for number in ids if number < len(self.names)])

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Readable pieces of text, one for each id: a space before a word is "\u2581", a part of a character its bytes.

        >>> t = PretrainedTokenizer(("\u0120dog", "\u00e2", "<s>"), lambda text, special: [], lambda ids: "", True, {})
        >>> t.tokens([0, 1, 2, 9])
        ['\u2581dog', '<0xE2>', '<s>', '<unused 9>']
        """
        return [self._piece(int(number)) for number in ids]

    def _piece(self, number: int) -> str:
        name = self.names[number] if number < len(self.names) else f"<unused {number}>"
        if not self.byte_level or not all(character in OF_CHARACTER for character in name):
            return name
        content = bytes(OF_CHARACTER[character] for character in name)
        try:
            return content.decode("utf-8").replace(" ", SPACE)
        except UnicodeDecodeError:
            return "".join(f"<0x{byte:02X}>" for byte in content)


OF_CHARACTER = {character: byte for byte, character in enumerate(byte_characters())}


def read_tokenizer(path: Path | str, config: dict) -> PretrainedTokenizer:
    """The tokenizer of the model in a directory, in the directory of a file of weights, or in a .gguf file.

    `config` is the model's config.json. Raises InputError where the files are missing or damaged.
    """
    path = Path(path)
    if path.suffix == gguf.SUFFIX and path.is_file():
        return of_gguf(path, gguf.header_of(path).fields)
    directory = path if path.is_dir() else path.parent
    if not directory.is_dir():
        raise InputError(f"a directory of a model is needed; there is no {directory}")
    whole, vocabulary, merges = (directory / name for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    is_gpt2 = config.get("model_type", "gpt2") == "gpt2" and vocabulary.is_file() and merges.is_file()
    if is_gpt2 and (not whole.is_file() or tokenizers_library(needed=False) is None):
        if json_object(directory / "tokenizer_config.json", needed=False).get("add_prefix_space"):
            raise InputError(
                f"add_prefix_space in {directory / 'tokenizer_config.json'} needs tokenizer.json beside it"
            )
        special = special_of(directory, config, json_object(vocabulary).get)
        return of_merges(vocabulary, merges, special, ends_of(directory, config))
    if not whole.is_file():
        raise InputError(
            f"{directory} must have the tokenizer of the model, tokenizer.json (GPT-2: vocab.json, merges.txt); copy "
            "the whole directory of the model"
        )
    return of_library(parse_tokenizer(whole.read_bytes(), whole), directory, config)


def has_tokenizer(path: Path) -> bool:
    """Whether there is a tokenizer.json in the directory of a model, or in that of a file of weights."""
    return ((path if path.is_dir() else path.parent) / "tokenizer.json").is_file()


def of_library(tokenizer, directory: Path, config: dict) -> PretrainedTokenizer:
    """The tokenizer of the `tokenizers` library; its file may cut and pad texts, which is not done here."""
    with explain_damage(directory / "tokenizer_config.json"):
        check_tokenizer_config(directory, tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    special = special_of(directory, config, tokenizer.token_to_id)
    clean, plain = cleanup_of(directory, tokenizer), wrap_tokenizer(tokenizer, special, ends_of(directory, config))
    return dataclasses.replace(plain, to_text=lambda ids: clean(plain.to_text(ids)))


def check_tokenizer_config(directory: Path, tokenizer):
    """Raise InputError for an entry of tokenizer_config.json that makes other tokens than tokenizer.json (`tokenizer`)
    in transformers: there it changes the normalization of BERT's texts, the space before a text, or adds tokens."""
    path = directory / "tokenizer_config.json"
    settings = json_object(path, needed=False)

    def refuse(name: str, actual):
        raise InputError(
            f"{name} {settings[name]!r} in {path} contradicts tokenizer.json, which has {actual!r}: change one"
        )

    state = lambda component: json.loads(component.__getstate__()) if component is not None else {}
    normalizer, pre_tokenizer = state(tokenizer.normalizer), state(tokenizer.pre_tokenizer)
    of_library = str(settings.get("tokenizer_class")) in ("PreTrainedTokenizerFast", "TokenizersBackend")
    entries = {"do_lower_case": "lowercase", "strip_accents": "strip_accents"}
    entries |= {"tokenize_chinese_chars": "handle_chinese_chars"}
    for name, field in entries.items() if normalizer.get("type") == "BertNormalizer" and not of_library else ():
        if settings.get(name) not in (None, normalizer[field]):
            refuse(name, normalizer[field])
    signs = r'"Prepend"|"add_prefix_space": true|"prepend_scheme": "(always|first)"'
    spaced = bool(re.search(signs, json.dumps([normalizer, pre_tokenizer])))
    if type(settings.get("add_prefix_space")) is bool and not of_library and settings["add_prefix_space"] != spaced:
        refuse("add_prefix_space", spaced)
    if settings.get("split_special_tokens"):
        refuse("split_special_tokens", False)
    added = {token.content: (number, token) for number, token in tokenizer.get_added_tokens_decoder().items()}
    for number, flags in (settings.get("added_tokens_decoder") or {}).items():
        field, token = added.get(flags["content"], (None, None))
        if field != int(number):
            refuse("added_tokens_decoder", f"no added token {flags['content']} of number {number}")
        if differ := [name for name in FLAGS if flags.get(name, getattr(token, name)) != getattr(token, name)]:
            refuse("added_tokens_decoder", f"{differ[0]} {getattr(token, differ[0])} for {flags['content']}")
    for place, name, token in special_tokens_in(directory):
        if token not in added:
            raise InputError(
                f"{name} {token!r} in {place} contradicts tokenizer.json, which has no added token {token}: change one"
            )


def special_tokens_in(directory: Path) -> list[tuple[Path, str, str]]:
    """[(file, "eos_token", "</s>"), ...]: the special tokens that the files beside tokenizer.json name; the last one of
    a name counts. Where tokenizer_config.json has added_tokens_decoder the others are not read, as in transformers."""
    files = [directory / f"{name}.json" for name in ("tokenizer_config", "special_tokens_map", "added_tokens")]
    contents = [json_object(file, needed=False) for file in files]
    contents[2] = {"added_tokens": [*contents[2]]}
    triples = []
    for file, entries in zip(files, contents[:1] if "added_tokens_decoder" in contents[0] else contents):
        for name, tokens in entries.items():
            several = name in ("additional_special_tokens", "extra_special_tokens", "added_tokens") and tokens
            if several or name.endswith("_token"):
                items = (tokens.values() if isinstance(tokens, dict) else tokens) if several else [tokens]
                triples += [(file, name, content_of(token)) for token in items]
    return [triple for triple in triples if isinstance(triple[2], str)]


def cleanup_of(directory: Path, tokenizer=None) -> Callable[[str], str]:
    """What is done with a decoded text: nothing, or what clean_up_tokenization_spaces in tokenizer_config.json says,
    which does not reach a BPE (`tokenizer`) unless another entry says so."""
    settings = json_object(directory / "tokenizer_config.json", needed=False)
    of_bpe = tokenizer is not None and json.loads(tokenizer.to_str())["model"]["type"] == "BPE"
    forced = settings.get("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")
    if not settings.get("clean_up_tokenization_spaces") or (of_bpe and not forced):
        return lambda text: text
    return without_spaces


def without_spaces(text: str) -> str:
    """A text without the spaces before marks and English contractions.

    >>> without_spaces("He does n't , I 'm .")
    "He doesn't, I'm."
    """
    for mark in (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(mark, mark.strip())
    return text


def content_of(token):
    """The text of a token that may have flags beside it."""
    return token.get("content") if isinstance(token, dict) else token


def wrap_tokenizer(tokenizer, special: dict[str, int], ends: tuple[int, ...]) -> PretrainedTokenizer:
    """A tokenizer of the library with its special tokens."""
    space = byte_characters()[ord(" ")]
    return PretrainedTokenizer(
        tuple(token_names(tokenizer)),
        lambda text, special: tokenizer.encode(text, add_special_tokens=special).ids,
        lambda numbers: tokenizer.decode(list(numbers), skip_special_tokens=True),
        tokenizer.decoder is not None and tokenizer.decoder.decode(["a", f"{space}b"]) == "a b",
        special,
        ends,
    )


def read_token_list(path: Path, count: int | None = None) -> list[str]:
    """The tokens of a vocab.json in the order of their numbers; InputError unless these are from 0 to `count`."""
    ids = json_object(path)
    count = len(ids) if count is None else count
    if len(ids) != count or {number for number in ids.values() if type(number) is int} != {*range(count)}:
        raise InputError(
            f"{path} must number its {count} tokens from 0, has {len(ids)}; copy it from the directory of the model"
        )
    return sorted(ids, key=ids.get)


def of_merges(vocabulary: Path, merges: Path, special: dict[str, int], ends: tuple[int, ...]) -> PretrainedTokenizer:
    """GPT-2's tokenizer from its two files, without a library."""
    names = read_token_list(vocabulary)
    ids = {name: number for number, name in enumerate(names)}
    extra = {names[number] for number in special.values() if number < len(names)} | ({END_OF_TEXT} & ids.keys())
    tokenizer = byte_level_bpe(read_merges(str(merges)), sorted(extra))
    if unknown := sorted(token for token in map("".join, read_merges(str(merges))) if token not in ids):
        raise InputError(f"{vocabulary} must have what {merges.name} makes; it has no {unknown[0]!r}")

    def decode(numbers: Sequence[int]) -> str:
        return tokenizer.text([names[number] for number in numbers if names[number] not in extra])

    encode = lambda text, special: [ids[token] for token in tokenizer.tokens(text)]
    return PretrainedTokenizer(tuple(names), encode, decode, True, special, ends)


def special_of(directory: Path, config: dict, token_to_id: Callable[[str], int | None] = lambda name: None) -> dict:
    """{"bos": id, ...}: as the tokenizer's files name the tokens, or by the numbers in config.json."""
    entries = {name: token for _, name, token in special_tokens_in(directory)}
    ids = {}
    for name in NAMES:
        token = entries.get(f"{name}_token")
        number = token_to_id(token) if isinstance(token, str) else None
        number = first_id(config.get(f"{name}_token_id")) if number is None else number
        if number is not None:
            ids[name] = number
    return ids


def first_id(ids) -> int | None:
    """A number, or the first of a list of numbers; None for anything else.

    >>> first_id(2), first_id([7, 8]), first_id("</s>")
    (2, 7, None)
    """
    return next((number for number in (ids if isinstance(ids, list) else [ids]) if type(number) is int), None)


def ends_of(directory: Path, config: dict) -> tuple[int, ...]:
    """The tokens that end a text, as the library's generate has them: those of generation_config.json alone or, where
    there is none, of config.json, whose absent entry has a meaning (`config_json.ENTRIES`)."""
    path = directory / "generation_config.json"
    ids = json_object(path).get("eos_token_id") if path.is_file() else Facts(config).get("eos_token_id")
    return tuple(sorted({number for number in (ids if isinstance(ids, list) else [ids]) if type(number) is int}))


def of_gguf(path: Path, fields: dict) -> PretrainedTokenizer:
    """The tokenizer in the header of a .gguf file; InputError for one of a kind that is not known."""
    tokenizer, special = tokenizers_of_gguf(path, fields)
    return wrap_tokenizer(tokenizer, special, ends_of_gguf(fields))


def ends_of_gguf(fields: dict) -> tuple[int, ...]:
    """The tokens that end a text of a .gguf file: those that the header names, and those that llama.cpp knows by their
    spelling, as many files name one of several only."""
    ids = {token: number for number, token in enumerate(fields["tokenizer.ggml.tokens"])}
    ends, special = set(), gguf.special_ids(fields)
    for name, spelled in ENDS.items():
        number = fields.get(f"tokenizer.ggml.{name}_token_id", special.get(f"{name}_token_id"))
        ends |= set() if number is None else {number}
        if number is None or not name.startswith("fim"):
            ends |= {ids[token] for token in spelled if token in ids}
    has = lambda *tokens: all(ids.get(token) in ends for token in tokens)
    if has("<|call|>", "<|return|>", "<|end|>") or (
        has("<|flush|>", "<|end|>") and (has("<|call|>") or has("<|calls|>"))
    ):
        ends -= {ids["<|end|>"]}
    return tuple(sorted(ends - ({ids["</s>"]} if has("<|tool_response>", "</s>") else set())))


def tokenizers_of_gguf(path: Path, fields: dict) -> tuple[Any, dict[str, int]]:
    """The library's tokenizer of the header of a .gguf file, and the ids of its special tokens."""
    of_gpt2 = fields.get("general.architecture") == "gpt2"  # its pattern is known where the file does not name it
    kind, split = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "gpt-2" if of_gpt2 else None)
    tokens, types = fields.get("tokenizer.ggml.tokens"), fields.get("tokenizer.ggml.token_type") or []
    if not tokens or len(set(tokens)) != len(tokens) or len(types) not in (0, len(tokens)):
        raise InputError(
            f"{path} must have the vocabulary of its model, distinct tokens and their types; copy it again"
        )
    if kind not in ("gpt2", "llama"):
        raise InputError(f"{path}: a vocabulary of the kind {kind} is not supported; gpt2 and llama are")
    if kind == "gpt2" and split not in SPLITS:
        how = f"as {split}" if split else "in a way that its header does not name, in tokenizer.ggml.pre,"
        raise InputError(f"{path}: text that is split {how} is not supported; supported: {', '.join(SPLITS)}")
    if fields.get("tokenizer.ggml.add_sep_token") or fields.get("tokenizer.ggml.suppress_tokens"):
        raise InputError(f"{path}: tokenizer.ggml.add_sep_token and suppress_tokens are not supported")
    if is_gemma(fields):  # its file has runs of spaces as they are
        tokens = [token if token.strip(" ") else SPACE * len(token) for token in tokens]
    special = {name.removesuffix("_token_id"): number for name, number in gguf.special_ids(fields).items()}
    with explain_damage(path):
        tokenizer = byte_level(fields, tokens, SPLITS.get(split)) if kind == "gpt2" else sentencepiece(fields, tokens)
        added = tokenizers_library().AddedToken
        ends = ends_of_gguf(fields)
        types = [CONTROL if number in ends else kind for number, kind in enumerate(types or [1] * len(tokens))]
        special_tokens = [(token, kind) for token, kind in zip(tokens, types) if kind in (CONTROL, USER_DEFINED)]
        tokenizer.add_special_tokens(
            [added(token, normalized=False, special=True) for token, kind in special_tokens if kind == CONTROL]
        )
        tokenizer.add_tokens([added(token, normalized=False) for token, kind in special_tokens if kind == USER_DEFINED])
        usual = kind == "llama" or SPLITS[split] == SPLITS["llama-bpe"]  # as in llama.cpp
        if "bos" not in special and fields.get("tokenizer.ggml.add_bos_token", usual):
            raise InputError(f"{path} must have tokenizer.ggml.bos_token_id, as texts of {split or kind} begin with it")
        prefix = [special["bos"]] if fields.get("tokenizer.ggml.add_bos_token", usual) else []
        suffix = [special["eos"]] if fields.get("tokenizer.ggml.add_eos_token", False) else []
        if prefix or suffix:
            template = " ".join([*(tokens[i] for i in prefix), "$A", *(tokens[i] for i in suffix)])
            template_tokens = [(tokens[i], i) for i in prefix + suffix]
            tokenizer.post_processor = tokenizers_library().processors.TemplateProcessing(
                single=template, special_tokens=template_tokens
            )
    return tokenizer, special


def byte_level(fields: dict, tokens: list[str], split: str | None):
    """A byte-level BPE; `split` is a value of SPLITS."""
    t = tokenizers_library()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    ids = {token: number for number, token in enumerate(tokens)}
    if strange := [merge for merge in merges if len(merge) != 2 or not {*merge, "".join(merge)} <= ids.keys()]:
        raise ValueError(f"the vocabulary does not have the merge {' '.join(strange[0])!r}")
    tokenizer = t.Tokenizer(t.models.BPE(ids, merges, ignore_merges=split == SPLITS["llama-bpe"]))
    splitters = []
    if split == "digits":
        splitters = [t.pre_tokenizers.Digits(individual_digits=True)]
    elif split is not None:
        splitters = [t.pre_tokenizers.Split(t.Regex(split), behavior="isolated")]
    whole = split in (None, "digits")
    tokenizer.pre_tokenizer = t.pre_tokenizers.Sequence(
        [*splitters, t.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=whole)]
    )
    if split == SPLITS["qwen2"]:
        tokenizer.normalizer = t.normalizers.NFC()
    tokenizer.decoder = t.decoders.ByteLevel()
    return tokenizer


def is_gemma(fields: dict) -> bool:
    return str(fields.get("general.architecture")).startswith("gemma")


def sentencepiece(fields: dict, tokens: list[str]):
    """A BPE of sentencepiece with bytes for what it does not know; a file without merges implies them."""
    t = tokenizers_library()
    ids = {token: number for number, token in enumerate(tokens)}
    # Gemma's scores do not follow the order of its merges; the order in the file does
    scores = [-number for number in range(len(tokens))] if is_gemma(fields) else fields["tokenizer.ggml.scores"]
    merges = [
        (scores[number], len(token[:cut]), token[:cut], token[cut:])
        for number, token in enumerate(tokens)
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    merges.sort(key=lambda merge: (-merge[0], -merge[1]))
    unknown = tokens[gguf.special_ids(fields)["unk_token_id"]]
    pairs = [(left, right) for _, _, left, right in merges]
    tokenizer = t.Tokenizer(t.models.BPE(ids, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = [t.normalizers.Prepend(SPACE)] if fields.get("tokenizer.ggml.add_space_prefix", True) else []
    tokenizer.normalizer = t.normalizers.Sequence([*prefix, t.normalizers.Replace(" ", SPACE)])
    strip = [t.decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = t.decoders.Sequence(
        [t.decoders.Replace(SPACE, " "), t.decoders.ByteFallback(), t.decoders.Fuse(), *strip]
    )
    return tokenizer


# --- tokenizers of datasets -------------------------------------------------------------------------------------------


def dataset_tokenizer(directory: str, max_length: int | None) -> tuple[Tokenizer, Vocabulary]:
    """Return the tokenizer of a pretrained model (directory or .gguf file), which cuts texts after `max_length` tokens
    if this is not None, and the vocabulary of the model: as many tokens as its embeddings have rows."""
    if directory.endswith(gguf.SUFFIX):
        fields = gguf.header_of(Path(directory)).fields
        content = tokenizers_of_gguf(Path(directory), fields)[0].to_str().encode()
        return tokenizer_of_json(content, max_length), vocabulary_of(content, len(fields["tokenizer.ggml.tokens"]))
    path = Path(directory) / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"--data.pretrained must be the directory of a model with tokenizer.json; there is no {path}")
    content = path.read_bytes()
    with explain_damage(path):
        check_tokenizer_config(Path(directory), parse_tokenizer(content, path))
        size = int(json_object(Path(directory) / "config.json", needed=False).get("vocab_size", 0))
        return tokenizer_of_json(content, max_length), vocabulary_of(content, size)
