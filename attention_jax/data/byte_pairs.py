"""GPT-2's byte-level BPE (Radford et al. 2019, section 2.2): it splits any text, and no token is unknown."""

import functools
import re
import unicodedata
from collections.abc import Sequence

from attention_jax.data.pairs import Tokenizer
from attention_jax.data.tokenizers import merge_symbols

PIECES = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII)
"""GPT-2's pattern of pieces that are merged separately, of the characters of `ascii_class`."""


def ascii_class(character: str) -> str:
    r"""An ASCII character to which `PIECES` does what GPT-2's pattern of Unicode classes does to `character`.

    Letters are the category L, numbers N, and spaces have the property White_Space, as in Python but for ASCII 28 to
    31.

    >>> "".join(map(ascii_class, "don't \xe9\u0661\xa0\u0301"))
    "don't a0\n!"
    """
    if character.isascii():
        return character
    if character.isspace():
        return "\n"
    return {"L": "a", "N": "0"}.get(unicodedata.category(character)[0], "!")


def split_pieces(text: str) -> list[str]:
    """The pieces of a text; no merge crosses their boundaries.

    >>> split_pieces("It's  2 cafés")
    ['It', "'s", ' ', ' 2', ' cafés']
    """
    classes = "".join(map(ascii_class, text))
    return [text[match.start() : match.end()] for match in PIECES.finditer(classes)]


def byte_characters() -> list[str]:
    """The printable character that a vocabulary has for each byte: Latin-1's own, or one from U+0100.

    >>> byte_characters()[ord("a")], byte_characters()[ord(" ")]
    ('a', 'Ġ')
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    substitutes = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(substitutes)) for byte in range(256)]


def byte_level_bpe(merges: Sequence[tuple[str, str]], special: Sequence[str] = ()) -> Tokenizer:
    """The tokenizer of merges, the first ones before the others; a `special` token is kept whole.

    >>> t = byte_level_bpe([("Ġ", "d"), ("o", "g")], ["<end>"])
    >>> t.tokens("a dog<end>"), t.text(["Ġd", "og", "<end>"])
    (['a', 'Ġd', 'og', '<end>'], ' dog<end>')
    """
    ranks, characters = {tuple(merge): rank for rank, merge in enumerate(merges)}, byte_characters()
    byte_of = {character: byte for byte, character in enumerate(characters)}
    special_pattern = re.compile(f"({'|'.join(map(re.escape, special)) or '$^'})")

    @functools.cache
    def split(piece: str) -> list[str]:
        return merge_symbols([characters[byte] for byte in piece.encode(errors="replace")], ranks)

    def tokens(text: str) -> list[str]:
        result = []
        for chunk in filter(None, special_pattern.split(text)):
            result += (
                [chunk] if chunk in special else [token for piece in split_pieces(chunk) for token in split(piece)]
            )
        return result

    def text(tokens: Sequence[str]) -> str:
        return bytes(byte_of[character] for character in "".join(tokens)).decode(errors="replace")

    return Tokenizer(tokens, text)
