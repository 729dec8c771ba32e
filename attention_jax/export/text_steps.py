"""Tokenization and detokenization of an exported model, as the JSON steps that `prepare_text.py` carries out."""

from attention_jax.data.tokenizers import word_pattern
from attention_jax.data.vocabulary import Tokenizer
from attention_jax.errors import InputError

CHARACTERS, JOINED, SPACED = ["find", "(?s)."], ["join", ""], ["join", " "]
MARKS = ["replace", "[\u202f\xa0]", " "], ["lower"], ["replace", "([,.!?])", r" \1"]
LETTERS = ["replace", "[^A-Za-z]+", " "], ["lower"], ["replace", r"\A\Z", " "]
RULES = {
    "whitespace": ([["find", r"\S+"]], [SPACED]),
    "character": ([CHARACTERS], [JOINED]),
    "stripped": ([CHARACTERS], [JOINED, ["strip"]]),
    "letters": ([*LETTERS, CHARACTERS], [JOINED]),
    "words": ([*MARKS, ["find", "[^ ]+"]], [SPACED]),
    "words and marks": ([["lower"], ["find", word_pattern().pattern]], [SPACED]),
}
"""{recipe: (steps from text to tokens, steps from tokens to text)} for tokenizers without arguments."""
TOKENIZER = "tokenizer.json"
"""The file of the tokenizer of a pretrained model, and the step that encodes with it."""


def tokenizer_steps(tokenizer: Tokenizer, name: str, files: dict[str, bytes]) -> tuple[list, list]:
    """Return the steps from text to tokens and from tokens to text of a tokenizer, as JSON values.

    Files that the steps read are added to `files`, under names that begin with `name`. Raises InputError for a
    custom tokenizer.
    """
    match tokenizer.recipe:
        case [rule] if rule in RULES:
            return RULES[rule]
        case ["padded", width, step]:
            return [["pad", width], CHARACTERS, *[["reverse"]] * (step < 0)], [JOINED]
        case ["spacy", *arguments]:
            return [["spacy", *arguments]], [SPACED]
        case ["bpe", merges, *has_end_symbol]:
            files[f"{name}.bpe"] = "\n".join(map(" ".join, merges)).encode()
            return [["bpe", f"{name}.bpe", *has_end_symbol]], [SPACED, ["replace", "@@ ", ""], ["replace", r"@@\Z", ""]]
        case ["sentencepiece", model]:
            files[f"{name}.model"] = model
            return [["sentencepiece", f"{name}.model"]], [["sentencepiece text", f"{name}.model"]]
        case ["pretrained", content, max_length]:
            files[TOKENIZER] = content
            return [[TOKENIZER, max_length]], [["tokenizer.json text"]]
        case ["lowercased" | "reversed" | "lines" as change, inner]:
            encode, decode = tokenizer_steps(inner, name, files)
            if change == "lines":
                return [["lines", encode]], [["join lines", decode]]
            if change == "reversed":
                return [*encode, ["reverse"]], [["reverse"], *decode]
            return [["lower"], *encode], decode
    raise InputError("the tokenizer of this run is not one of this package: --to stablehlo cannot describe it")
