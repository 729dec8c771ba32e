"""Tokenizers and detokenizers: whitespace, characters, d2l's words, spaCy's rules, ready-made BPE, GPT-2's byte-level
BPE, sentencepiece trained on the data, the tokenizer.json of a pretrained model; and the codes of languages."""

import functools
import gzip
import hashlib
import importlib.util
import io
import itertools
import json
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from attention_jax.config import import_object
from attention_jax.data import text_files
from attention_jax.data.cache import file_stamp
from attention_jax.data.vocabulary import Tokenizer, Vocabulary
from attention_jax.errors import InputError, explain_damage, how_to_install
from attention_jax.files import data_home, explain_home_errors, temporary_file

LONGEST_BYTES, PIECE = 4_192, 1_000
"""The longest text on which sentencepiece trains, in bytes of UTF-8, and the characters to which longer ones are cut.
"""
SAMPLE = 2**24
"""The number of characters on which sentencepiece is trained, approximately, of texts that have more."""


def whitespace() -> Tokenizer:
    """Split at spaces.

    >>> whitespace().tokens("one  line")
    ['one', 'line']
    """
    return Tokenizer(str.split, " ".join, recipe=("whitespace",))


def character() -> Tokenizer:
    """Split into characters, including spaces.

    >>> character().text(character().tokens("a b"))
    'a b'
    """
    return Tokenizer(list, "".join, recipe=("character",))


def letters() -> Tokenizer:
    """Split into lower-case letters, with one space for every run of other characters; an empty text is a space.

    >>> "".join(letters().tokens("The Time Traveller (for so\\nit will be"))
    'the time traveller for so it will be'
    """
    return Tokenizer(lambda text: list(re.sub("[^A-Za-z]+", " ", text).lower() or " "), "".join, recipe=("letters",))


def fixed_width_tokenizer(width: int, step: int) -> Tokenizer:
    """Split into characters, padded with spaces to `width`; in reverse order with a `step` of -1."""

    def tokens(text: str) -> list[str]:
        if len(text) > width:
            raise InputError(f"an input has at most {width} characters, but {text[:60]!r} has {len(text)}")
        return list(text.ljust(width))[::step]

    return Tokenizer(tokens, "".join, recipe=("padded", width, step))


def stripping_tokenizer() -> Tokenizer:
    """Split into characters; the detokenizer strips trailing spaces."""
    return Tokenizer(list, lambda characters: "".join(characters).rstrip(), recipe=("stripped",))


def words() -> Tokenizer:
    """d2l's preprocessing (11.4 / 10.5): lower case, no non-breaking spaces, a space before each of , . ! and ?

    >>> words().tokens("Cours\\u202f! Va, va.")
    ['cours', '!', 'va', ',', 'va', '.']
    """

    def tokens(text: str) -> list[str]:
        text = text.replace("\u202f", " ").replace("\xa0", " ").lower()
        for mark in ",.!?":
            text = text.replace(mark, " " + mark)
        return [token for token in text.split(" ") if token]

    return Tokenizer(tokens, " ".join, recipe=("words",))


def lowercase_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer of lower-cased text. It is for new texts: the texts of the dataset are lower-cased already."""
    return Tokenizer(
        lambda text: tokenizer.tokens(text.lower()),
        tokenizer.text,
        lambda texts: tokenizer.split([text.lower() for text in texts]),
        ("lowercased", tokenizer),
    )


def reverse_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer whose tokens are in reverse order."""
    return Tokenizer(
        lambda text: tokenizer.tokens(text)[::-1],
        lambda tokens: tokenizer.text(tokens[::-1]),
        lambda texts: [tokens[::-1] for tokens in tokenizer.split(texts)],
        ("reversed", tokenizer),
    )


def line_tokenizer(model: Tokenizer) -> Tokenizer:
    """The tokens of each line by a tokenizer, with a token for the end of a line."""

    def tokens(text: str) -> list[str]:
        first, *tail = text.split("\n")
        return model.tokens(first) + [token for line in tail for token in ("\n", *model.tokens(line))]

    def text(tokens: Sequence[str]) -> str:
        lines = [[]]
        for token in tokens:
            lines.append([]) if token == "\n" else lines[-1].append(token)
        return "\n".join(map(model.text, lines))

    return Tokenizer(tokens, text, recipe=("lines", model))


def combining_characters() -> str:
    """Return the characters that belong to the one before them, as a regular expression's class: marks (Unicode's
    category M) such as accents, vowel signs of Hindi and Arabic, and the joiners of letters, as in UAX 29."""
    codes = [code for code in range(0x300, 0x1F000) if unicodedata.category(chr(code))[0] == "M"]
    codes += [0x200C, 0x200D, *range(0xE0100, 0xE01F0)]
    begins = [code for code, previous in zip(codes, [None, *codes]) if previous != code - 1]
    ends = [code for code, following in zip(codes, [*codes[1:], None]) if following != code + 1]
    return "".join(f"{chr(begin)}-{chr(end)}" for begin, end in zip(begins, ends))


@functools.cache
def word_pattern() -> re.Pattern:
    """Return the pattern of a word, or of a punctuation mark or symbol."""
    marks = combining_characters()
    return re.compile(rf"\w[\w{marks}]*(?:['\u2019]\w[\w{marks}]*)*|[^\w\s][{marks}]*")


def split_words(text: str) -> list[str]:
    """Split into lower-case words and punctuation marks.

    >>> split_words("It's late: go!"), split_words("\\u0130stanbul")
    (["it's", 'late', ':', 'go', '!'], ['i̇stanbul'])
    """
    return word_pattern().findall(text.lower())


def words_and_marks() -> Tokenizer:
    """Return the tokenizer of `split_words`."""
    return Tokenizer(split_words, " ".join, recipe=("words and marks",))


def spacy(language: str, keep_whitespace: bool = False) -> Tokenizer:
    """spaCy's tokenizer rules of a language ("de", "en", ...): `spacy.blank` needs no model. Whole corpora
    are tokenized once and cached.

    Tokens of nothing but space (after a doubled space) are left out unless `keep_whitespace`. spaCy is optional, and
    not needed for a corpus that is in the cache.
    """

    @functools.cache
    def pipeline():
        if importlib.util.find_spec("spacy") is None:
            raise InputError(
                "the spacy tokenizer needs spaCy: pip install spacy (no model is needed); "
                "or choose another --data.tokenizer"
            )
        import spacy as library

        try:
            return library.blank(language).tokenizer
        except ImportError as error:
            raise InputError(
                f"spaCy has no rules for the language {language!r}: give its code in --data.languages, or xx, or "
                "choose another --data.tokenizer"
            ) from error

    def tokens(text: str) -> list[str]:
        token_texts = [token.text for token in pipeline()(text)]
        return token_texts if keep_whitespace else [token for token in token_texts if not any(map(str.isspace, token))]

    name = f"spacy-spaces-{language}" if keep_whitespace else f"spacy-{language}"
    forms = (json.dumps, json.loads) if keep_whitespace else ()
    all_tokens = lambda texts: _tokenize_once(name, texts, tokens, *forms)
    return Tokenizer(tokens, " ".join, all_tokens, ("spacy", language, *[True] * keep_whitespace))


def _tokenize_once(
    name: str,
    texts: Sequence[str],
    tokens: Callable[[str], list[str]],
    line: Callable[[list[str]], str] = " ".join,
    row: Callable[[str], list[str]] = str.split,
) -> list[list[str]]:
    """Return `[tokens(text) for text in texts]`, cached in a file named after a digest of its input.

    `line` writes the tokens of a text in one line, and `row` reads them.
    """
    key = hashlib.sha256("\n".join([name, *texts]).encode()).hexdigest()[:24]
    path = os.path.join(data_home(), "attention_jax", "tokens", f"{name}-{key}.gz")
    if os.path.exists(path):
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
            return [row(stored.rstrip("\n")) for stored in file]
    rows = [tokens(text) for text in texts]
    content = "".join(line(sentence) + "\n" for sentence in rows)
    _write_atomically(path, gzip.compress(content.encode("utf-8"), mtime=0))
    return rows


@explain_home_errors()
def _write_atomically(path: str, content: bytes) -> None:
    """Write a file atomically, also with concurrent writers."""
    with temporary_file(Path(path)) as temporary_path:
        temporary_path.write_bytes(content)


def bpe(path: str) -> Tokenizer:
    """Ready-made byte-pair encoding (Sennrich et al. 2016): merges of a subword-nmt file split words; "@@" marks a
    word's continuation. Of a merge that is there twice the first counts. In version 0.1, that of files that do not say
    theirs, the end of a word is a symbol of its own."""
    first_line = text_files.read_lines(path, "file of BPE merges")[0]
    version = re.sub(r"(\.0+)*$", "", first_line.split()[-1]) if first_line.startswith("#version:") else "0.1"
    if version not in ("0.1", "0.2"):
        raise InputError(f"{path} must be of version 0.1 or 0.2 of subword-nmt, is of {version}: learn it again")
    return bpe_of_merges([*dict.fromkeys(read_merges(path))], version == "0.1")


def read_merges(path: str) -> list[tuple[str, str]]:
    """The merges in a file, one a line, two symbols with a space between; a first line "#version:" is left out."""
    lines = text_files.read_lines(path, "file of BPE merges")
    has_version, end = lines[0].startswith("#version:"), max(i for i, line in enumerate(["-", *lines]) if line)
    merges = [tuple(line.strip("\r\n ").split(" ")) for line in lines[has_version:end]]
    for number, merge in enumerate(merges, start=1 + has_version):
        if len(merge) != 2:
            raise InputError(f"{path} line {number}: expected two symbols to merge, got {lines[number - 1][:60]!r}")
    return merges


def bpe_of_merges(merges: Sequence[tuple[str, str]], has_end_symbol: bool = False) -> Tokenizer:
    """Return the BPE tokenizer of a list of merges, in order of priority; `has_end_symbol` is that of
    `merge_tokenizer`."""
    merges = [tuple(merge) for merge in merges]
    tokenizer = merge_tokenizer({merge: rank for rank, merge in enumerate(merges)}, has_end_symbol)
    return tokenizer._replace(recipe=("bpe", merges, True) if has_end_symbol else ("bpe", merges))


def merge_symbols(symbols: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """The symbols of a word after all merges, those of the lowest rank first.

    >>> merge_symbols(list("aab"), {("a", "b"): 0, ("a", "a"): 1})
    ['a', 'ab']
    """
    while len(symbols) > 1:
        best = min(itertools.pairwise(symbols), key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        merged, position = [], 0
        while position < len(symbols):
            width = 2 if tuple(symbols[position : position + 2]) == best else 1
            merged.append("".join(symbols[position : position + width]))
            position += width
        symbols = merged
    return symbols


def merge_tokenizer(ranks: dict[tuple[str, str], int], has_end_symbol: bool = False) -> Tokenizer:
    """Return the BPE tokenizer of ranked merges for words between spaces; a word's last symbol ends in "</w>" or, with
    `has_end_symbol`, "</w>" is a symbol after it.

    >>> t = merge_tokenizer({("l", "o"): 0, ("lo", "w</w>"): 1})
    >>> t.tokens("low lot"), t.text(["lo@@", "t"])
    (['low', 'lo@@', 't'], 'lot')
    """

    @functools.cache
    def pieces(word: str) -> tuple[str, ...]:
        symbols = merge_symbols([*word, "</w>"] if has_end_symbol else [*word[:-1], word[-1] + "</w>"], ranks)
        symbols[-1] = symbols[-1].removesuffix("</w>")
        symbols = symbols if symbols[-1] else symbols[:-1]
        return (*(symbol + "@@" for symbol in symbols[:-1]), symbols[-1])

    def text(tokens: Sequence[str]) -> str:
        return " ".join(tokens).replace("@@ ", "").removesuffix("@@")

    return Tokenizer(lambda line: [piece for word in re.findall("[^ \r\n]+", line) for piece in pieces(word)], text)


def sentencepiece(texts: Iterable[str], vocabulary_size: int, exact: bool = False) -> tuple[Tokenizer, list[str]]:
    """Train a sentencepiece model (unigram; Kudo 2018) of at most `vocabulary_size` subwords on `texts`, cached.

    Returns the tokenizer and its subwords without special tokens; a small text has fewer. An `exact` model is lossless;
    otherwise repeated spaces are merged and characters normalized (NFKC).
    """
    return sentencepiece_model(train_sentencepiece(texts, vocabulary_size, exact))


def sentencepiece_model(source: str | bytes) -> tuple[Tokenizer, list[str]]:
    """Load a sentencepiece model from a file or its bytes; return it with its subwords, without special tokens."""
    import sentencepiece as library

    path = "what the run stored" if isinstance(source, bytes) else source
    try:
        content = source if isinstance(source, bytes) else Path(source).read_bytes()
        model = library.SentencePieceProcessor(model_proto=content)
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path} is not the file of a sentencepiece model; give one that ends in .model") from error
    ordinary = lambda number: not (model.is_unknown(number) or model.is_control(number))
    pieces = [model.id_to_piece(number) for number in filter(ordinary, range(model.get_piece_size()))]
    tokens, text = lambda text: model.encode(text, out_type=str), lambda tokens: model.decode(list(tokens))
    return Tokenizer(tokens, text, recipe=("sentencepiece", content)), pieces


def split_long_text(text: str) -> list[str]:
    """Divide a text that is too long for training sentencepiece, which leaves out such texts, into pieces.

    >>> split_long_text("short"), [len(piece) for piece in split_long_text("long " * 900)]
    (['short'], [1000, 1000, 1000, 1000, 500])
    """
    if len(text.encode()) <= LONGEST_BYTES:
        return [text]
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


def train_sentencepiece(texts: Iterable[str], vocabulary_size: int, exact: bool = False) -> str:
    """Return the file of a model with the given number of subwords, trained on `texts` unless it is cached, and of
    more than `SAMPLE` characters on every k-th text. `texts` are iterated twice."""
    import sentencepiece as library

    every = max(-(-sum(map(len, texts)) // SAMPLE), 1)
    texts = [piece for text in itertools.islice(texts, 0, None, every) for piece in split_long_text(text)]
    content = "\n".join(texts)
    key = hashlib.sha256(f"{vocabulary_size} {'exact ' * exact}{content}".encode()).hexdigest()[:24]
    lossless_options = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False} if exact else {}
    path = os.path.join(data_home(), "attention_jax", "sentencepiece", f"{key}.model")
    if not os.path.exists(path):
        model = io.BytesIO()
        try:
            library.SentencePieceTrainer.train(
                sentence_iterator=iter(texts),
                model_writer=model,
                vocab_size=vocabulary_size,
                hard_vocab_limit=False,
                character_coverage=1.0,
                num_threads=2,
                minloglevel=3,
                bos_id=-1,
                eos_id=-1,
                pad_id=-1,
                unk_id=0,
                **lossless_options,
            )
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0].rpartition("] ")[2].strip(" .") or "too little text"
            raise InputError(
                f"sentencepiece cannot train {vocabulary_size} pieces on {len(texts)} sentences: {reason}; "
                "set --data.vocabulary-size to another value"
            ) from error
        _write_atomically(path, model.getvalue())
    return path


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
    """GPT-2's byte-level BPE (Radford et al. 2019, section 2.2): it splits any text, and no token is unknown. Of the
    merges the first ones come before the others; a `special` token is kept whole.

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


def tokenizers_library(needed: bool = True):
    """The `tokenizers` library, which is an extra; without it None, or if it is `needed` an InputError."""
    try:
        import tokenizers
    except ImportError as error:
        if needed:
            how = how_to_install(["tokenizers"])
            raise InputError(f"this model needs tokenizers, which is not installed: {how}") from error
        return None
    return tokenizers


def parse_tokenizer(content: bytes, path: Path | str = "the tokenizer.json of a pretrained model"):
    """The tokenizer of the library in the `content` of a tokenizer.json; InputError for a damaged one."""
    library = tokenizers_library()
    with explain_damage(path):
        return library.Tokenizer.from_str(content.decode("utf-8"))


def tokenizer_of_json(content: bytes, max_length: int | None = None) -> Tokenizer:
    """Return the tokenizer in the `content` of a tokenizer.json.

    With `max_length`, a text gets the special tokens of the file, and of one with more than `max_length` tokens
    the last ones before the special ones are left out; otherwise they have all of their own tokens only.
    """
    tokenizer = parse_tokenizer(content)
    tokenizer.no_padding()
    tokenizer.no_truncation() if max_length is None else tokenizer.enable_truncation(max_length)
    special = {"add_special_tokens": max_length is not None}

    def text(tokens: Sequence[str]) -> str:
        ids = [tokenizer.token_to_id(token) for token in tokens]
        return tokenizer.decode([number for number in ids if number is not None])

    tokens = lambda text: tokenizer.encode(text, **special).tokens
    all_tokens = lambda texts: [encoding.tokens for encoding in tokenizer.encode_batch(list(texts), **special)]
    return Tokenizer(tokens, text, all_tokens, ("pretrained", content, max_length))


def token_names(tokenizer, size: int = 0) -> list[str]:
    """The tokens of a tokenizer of the library by id, filled up to `size`."""
    ids = tokenizer.get_vocab(with_added_tokens=True)
    names = [f"<unused {number}>" for number in range(max(size, 1 + max(ids.values(), default=-1)))]
    for name, number in ids.items():
        names[number] = name
    return names


def vocabulary_of(content: bytes, size: int) -> Vocabulary:
    """Return the vocabulary in the `content` of a tokenizer.json, filled up to `size` tokens; unk is the model's."""
    names, model = token_names(parse_tokenizer(content), size), json.loads(content)["model"]
    unknown = model.get("unk_token")
    if unknown is None and model.get("unk_id") is not None:  # a unigram model
        unknown = names[model["unk_id"]]
    return Vocabulary(names, unk=unknown if unknown in names else None)


READER = "attention_jax.pretrained.tokenizer:dataset_tokenizer"
"""The function that reads the tokenizer of a pretrained model: named, as loaders are, because `pretrained` imports
`data`."""


def model_tokenizer(directory: str, max_length: int | None) -> tuple[Tokenizer, Vocabulary]:
    """Return the tokenizer of a pretrained model (directory or .gguf file), which cuts texts after `max_length` tokens
    if this is not None, and its vocabulary."""
    return import_object(READER)(directory, max_length)


def tokenizer_stamps(directory: str) -> str:
    """The stamps of the files that `model_tokenizer` reads; "" for no directory."""
    path = Path(directory)
    files = [path] if path.suffix == ".gguf" else [path / "tokenizer.json", path / "config.json"]
    return " ".join(file_stamp(str(file)) for file in files if directory and file.is_file())


ANY = "xx"
"""The code of no particular language."""
BLEU_TOKENS = {"zh": "zh", "yue": "zh", "wuu": "zh"} | dict.fromkeys(("ja", "ko", "th", "lo", "km", "my"), "char")
"""sacrebleu's tokenizer by language, for languages without spaces between words; 13a for the others."""


@functools.cache
def parse_language(code: str) -> str:
    """Return the language of a code as people write them (ISO 639 with or without a region or script: ja, jpn, zh-CN,
    zh_Hant, ZH), without region and script: of two letters if it has such a code. Without Babel, which knows the codes,
    it is the part before the region.

    Raises InputError for a word that is no code, or two letters that no language has.

    >>> [parse_language(code) for code in ("zh_TW", "ZH", "jpn", "deu", "xx")]
    ['zh', 'zh', 'ja', 'de', 'xx']
    """
    match = re.fullmatch(r"([a-z]{2,3})([-_][a-z0-9]+)*", code.strip().lower())
    primary = match and match[1]
    try:
        from babel.core import Locale, get_global
    except ModuleNotFoundError as error:  # a run may be evaluated without what its training needed
        if primary:
            return primary
        raise error
    primary = get_global("language_aliases").get(primary, primary)
    if not primary or (len(primary) == 2 and primary != ANY and primary not in Locale("en").languages):
        raise InputError(
            f"--data.languages needs codes of languages, such as en, ja or zh-CN, or xx for any; got {code!r}"
        )
    return primary.partition("_")[0]


def bleu_tokens(code: str) -> str:
    """Return sacrebleu's tokenizer for plain text in a language.

    >>> bleu_tokens("zh-CN"), bleu_tokens("jpn"), bleu_tokens("en-GB")
    ('zh', 'char', '13a')
    """
    return BLEU_TOKENS.get(parse_language(code), "13a")
