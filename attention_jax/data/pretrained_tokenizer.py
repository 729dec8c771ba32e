"""The tokenizer.json of a pretrained model as the tokenizer of a dataset."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from attention_jax.config import import_object
from attention_jax.data.cache import file_stamp
from attention_jax.data.vocabulary import Tokenizer, Vocabulary
from attention_jax.errors import InputError


def of_directory(directory: str, max_length: int | None) -> tuple[Tokenizer, Vocabulary]:
    """Return the tokenizer of a pretrained model (directory or .gguf file), which cuts texts after `max_length` tokens
    if this is not None, and the vocabulary of the model: as many tokens as its embeddings have rows."""
    if directory.endswith(".gguf"):
        content, size = import_object("attention_jax.pretrained.tokenizer:tokenizer_json")(Path(directory))
        return tokenizer_of_json(content, max_length), vocabulary_of(content, size)
    path, config_path = Path(directory) / "tokenizer.json", Path(directory) / "config.json"
    if not path.is_file():
        raise InputError(f"--data.pretrained must be the directory of a model with tokenizer.json; there is no {path}")
    content = path.read_bytes()
    with report_damage(path):
        check = import_object("attention_jax.pretrained.tokenizer:check_tokenizer_config")
        check(Path(directory), parse_tokenizer(content))
        config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else {}
        return tokenizer_of_json(content, max_length), vocabulary_of(content, int(config.get("vocab_size", 0)))


def stamps(directory: str) -> str:
    """The stamps of the files that `of_directory` reads; "" for no directory."""
    path = Path(directory)
    files = [path] if directory.endswith(".gguf") else [path / "tokenizer.json", path / "config.json"]
    return " ".join(file_stamp(str(file)) for file in files if directory and file.is_file())


@contextlib.contextmanager
def report_damage(path: Path):
    """A context in which an error of plain values means that `path` or config.json beside it is damaged."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        reason = f"{type(error).__name__} {error}"
        raise InputError(f"{path} or config.json beside it is damaged ({reason}): copy the whole directory") from error


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


def vocabulary_of(content: bytes, size: int) -> Vocabulary:
    """Return the vocabulary in the `content` of a tokenizer.json, filled up to `size` tokens; unk is the model's."""
    ids, model = parse_tokenizer(content).get_vocab(with_added_tokens=True), json.loads(content)["model"]
    names = [f"<unused {number}>" for number in range(max(size, 1 + max(ids.values())))]
    for name, number in ids.items():
        names[number] = name
    unknown = model.get("unk_token")
    if unknown is None and model.get("unk_id") is not None:  # a unigram model
        unknown = names[model["unk_id"]]
    return Vocabulary(names, unk=unknown if unknown in ids else None)


def parse_tokenizer(content: bytes):
    """The tokenizer of the `tokenizers` library, which is an extra; InputError without it, or for a damaged file."""
    try:
        import tokenizers
    except ImportError as error:
        raise InputError(
            "the tokenizer of a pretrained model needs the library tokenizers: pip install 'attention_jax[pretrained]'"
        ) from error
    try:
        return tokenizers.Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:  # the type that the library raises
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"the tokenizer.json of a pretrained model is damaged ({reason}): copy it again") from error
