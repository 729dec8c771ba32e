"""Encode texts for an exported model, and decode token ids. Needs NumPy; sentencepiece, spaCy or
tokenizers (a tokenizer.json) for their tokenizers.

`launch.py export RUN --to stablehlo` copies this file beside the programs. The steps of both directions are under
"preprocessing" in manifest.json (`attention_jax.export.text_steps` writes them), the vocabularies in words.json.
"""

import functools
import itertools
import json
import re
import unicodedata
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def prepare(texts: list[str]) -> tuple[np.ndarray, ...]:
    """Tokenize N texts: token ids [N, T] and, if the program has that input, lengths [N]."""
    manifest, words = read_json("manifest.json"), read_json("words.json")
    recipe, width = manifest["preprocessing"]["encode"], manifest["inputs"][0]["shape"][1]
    vocabulary = words[recipe["vocabulary"]]
    ids = {token: number for number, token in enumerate(vocabulary["tokens"])}
    special = {vocabulary["tokens"][vocabulary[name]] for name in ("pad", "bos", "eos") if vocabulary[name] is not None}
    array, lengths = np.full((len(texts), width), vocabulary["pad"] or 0, np.int32), np.zeros(len(texts), np.int32)
    for row, text in enumerate(texts):
        tokens = apply(recipe["steps"], unicodedata.normalize("NFC", text))[: recipe["most"]]
        numbers = [vocabulary["unk"] if token in special else ids.get(token, vocabulary["unk"]) for token in tokens]
        begin, end = ([ids[token] for token in recipe[place]] for place in ("begin", "end"))
        numbers = begin + numbers + end or [ids[token] for token in recipe["empty"]]
        if len(numbers) > width or None in numbers:
            raise ValueError(f"at most {width} tokens of the vocabulary are needed, got {tokens}")
        lengths[row], array[row, : len(numbers)] = len(numbers), numbers
    return (array, lengths)[: len(manifest["inputs"])]


def text(numbers) -> str:
    """Decode a sequence of generated token ids to text, up to the end-of-sequence token."""
    recipe, numbers = read_json("manifest.json")["preprocessing"]["decode"], [int(number) for number in numbers]
    vocabulary = read_json("words.json")[recipe["vocabulary"]]
    numbers = numbers[: numbers.index(vocabulary["eos"])] if vocabulary["eos"] in numbers else numbers
    return apply(
        recipe["steps"], [vocabulary["tokens"][i] for i in numbers if i not in (vocabulary["pad"], vocabulary["bos"])]
    )


@functools.cache
def read_json(name: str) -> dict:
    return json.loads((HERE / name).read_text(encoding="utf-8"))


def apply(steps: list, value):
    """Apply preprocessing steps to a text, or to a list of tokens."""
    for name, *arguments in steps:
        value = STEPS[name](value, *arguments)
    return value


def bpe(text: str, file: str, has_end_symbol: bool = False) -> list[str]:
    """Split words into subwords with the merges in a file, one per line (Sennrich et al. 2016, Algorithm 1); the end of
    a word is a symbol of its own, or a part of the last one."""
    ranks, tokens = merges(file), []
    for word in re.findall("[^ \r\n]+", text):
        symbols = [*word, "</w>"] if has_end_symbol else [*word[:-1], word[-1] + "</w>"]
        while candidates := [pair for pair in itertools.pairwise(symbols) if pair in ranks]:
            pair = min(candidates, key=ranks.get)
            pattern = rf"(?<![^ ]){re.escape(' '.join(pair))}(?![^ ])"
            symbols = re.sub(pattern, lambda match: match[0].replace(" ", ""), " ".join(symbols)).split(" ")
        symbols = [*symbols[:-1], *filter(None, [symbols[-1].removesuffix("</w>")])]
        tokens += [*(symbol + "@@" for symbol in symbols[:-1]), symbols[-1]]
    return tokens


def each_line(text: str, steps: list) -> list[str]:
    """Tokenize line by line, with a token for each line break."""
    lines = re.split("(\n)", text)
    return [token for line in lines for token in ([line] if line == "\n" else apply(steps, line))]


def join_lines(tokens: list[str], steps: list) -> str:
    """Join tokens to text: the inverse of `each_line`."""
    ends = [-1, *(place for place, token in enumerate(tokens) if token == "\n"), len(tokens)]
    return "\n".join(apply(steps, tokens[begin + 1 : end]) for begin, end in itertools.pairwise(ends))


@functools.cache
def merges(file: str) -> dict:
    lines = (HERE / file).read_text(encoding="utf-8").split("\n")
    return {tuple(line.split(" ")): rank for rank, line in enumerate(lines)}


@functools.cache
def model(file: str):
    from sentencepiece import SentencePieceProcessor

    return SentencePieceProcessor(model_file=str(HERE / file))


@functools.cache
def library_tokenizer(max_length: int | None = None):
    """Read the tokenizer in tokenizer.json, which cuts texts after `max_length` tokens, if any, and does not pad."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation() if max_length is None else tokenizer.enable_truncation(max_length)
    return tokenizer


def tokenize_as_library(text: str, max_length: int | None) -> list[str]:
    """Tokenize with tokenizer.json; a text that is cut after `max_length` tokens has special tokens around it."""
    return library_tokenizer(max_length).encode(text, add_special_tokens=max_length is not None).tokens


def text_of_library(tokens: list[str]) -> str:
    """Join the tokens of tokenizer.json to text, without special tokens and those that it lacks."""
    ids = [library_tokenizer().token_to_id(token) for token in tokens]
    return library_tokenizer().decode([number for number in ids if number is not None])


def spacy_tokens(text: str, language: str, keep_whitespace: bool = False) -> list[str]:
    """Tokenize with spaCy's rules of a language and drop whitespace tokens unless they are to be kept."""
    import spacy

    tokens = [token.text for token in spacy.blank(language).tokenizer(text)]
    return tokens if keep_whitespace else [token for token in tokens if not any(map(str.isspace, token))]


STEPS = {
    "lower": str.lower,
    "replace": lambda text, pattern, new: re.sub(pattern, new, text),
    "pad": str.ljust,
    "find": lambda text, pattern: re.findall(pattern, text),
    "reverse": lambda tokens: tokens[::-1],
    "join": lambda tokens, separator: separator.join(tokens),
    "strip": str.rstrip,
    "bpe": bpe,
    "spacy": spacy_tokens,
    "sentencepiece": lambda text, file: model(file).encode(text, out_type=str),
    "sentencepiece text": lambda tokens, file: model(file).decode(tokens),
    "tokenizer.json": tokenize_as_library,
    "tokenizer.json text": text_of_library,
    "lines": each_line,
    "join lines": join_lines,
}
