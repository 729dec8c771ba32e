"""What `predict`, `look` and `evaluate` do with a pretrained model instead of a run (pretrained/load.py)."""

import sys
from pathlib import Path
from typing import Any

from attention_jax.config import Generation, LanguageModelConfig
from attention_jax.errors import InputError
from attention_jax.printing import escape_control


def concerns(words: list[str]) -> bool:
    """Whether the first word names a pretrained model."""
    from attention_jax.pretrained.load import is_pretrained

    return bool(words) and not words[0].startswith("-") and is_pretrained(words[0])


def parse_and_open(kind: type, words: list[str], continues: bool = False) -> tuple[Any, Any, dict[str, Any] | None]:
    """The options of a command, the model and, where it `continues` texts, the options of sampling that differ from
    those of the model's files."""
    from attention_jax.cli import command_options
    from attention_jax.pretrained import load

    path = Path(words[0])
    weights = load.read_pretrained(path)
    usual = usual_sampling(path) if continues and isinstance(weights.options, LanguageModelConfig) else None
    args, options, decode = command_options.parse_with_model(kind, words, weights.options, usual)
    sampling = None if decode is None else {k: v for k, v in vars(decode).items() if v != getattr(usual, k)}
    return args, lambda: load.build_pretrained(path, weights, options), sampling


def predict(words: list[str]):
    """Print what the model makes of each text; a terminal sees a continuation while it is written."""
    from attention_jax.cli import command_options
    from attention_jax.cli.commands import texts_of

    args, load, sampling = parse_and_open(command_options.Predict, words, continues=True)
    if not args.texts:
        raise InputError("launch.py predict needs at least one text after the model")
    if args.attention:
        raise InputError("--attention is for runs: launch.py look shows the attention maps of a pretrained model")
    texts, model = texts_of(args.texts, files=False), load()
    if sampling is not None and sys.stdout.isatty():
        return [show_written(model, text, sampling) for text in texts]
    for text, output in zip(texts, model.predict(texts, **(sampling or {})), strict=True):
        print(escape_control(f"{text} -> {output}"))


def usual_sampling(path: Path) -> Generation:
    """The options of sampling that the files of a language model say."""
    from attention_jax.pretrained import generation_config

    options = generation_config.sampling_in(path)
    total = options.pop("total", None)
    return Generation(**({} if total is None else {"length": total}) | options)


def show_written(model, text: str, sampling: dict[str, Any]):
    """Print a text and its continuation while it is written."""
    show = lambda piece: print(escape_control(piece), end="", flush=True)
    show(f"{text} -> {text}")
    model.generate([text], stream=show, **sampling)
    print()


def look(words: list[str]):
    """Write the page of attention maps of each text."""
    from attention_jax.cli import command_options
    from attention_jax.cli.commands import texts_of

    args, load, _ = parse_and_open(command_options.Look, words)
    if args.out and not args.out.endswith((".html", ".htm")):
        raise InputError(f"--out needs a file that ends in .html; got {args.out}")
    if not args.texts:
        raise InputError("look needs at least one text, or image file, after a pretrained model")
    texts, model = texts_of(args.texts, files=True), load()
    page = model.look(texts)
    path = page.save(args.out or f"{model.name}.html")
    print(f"{page.note}\n{path}" if page.note else path)


def evaluate(words: list[str]):
    """Print the perplexity of a text file."""
    from attention_jax.cli import command_options
    from attention_jax.cli.commands import lines_of

    args, load, _ = parse_and_open(command_options.Evaluate, words)
    if not args.text:
        raise InputError("launch.py evaluate needs --text FILE, a text, for a pretrained model")
    text = "\n".join(lines_of(args.text, "text to evaluate"))
    for name, value in load().perplexity(text).items():
        print(f"{name:32} {value:.6g}")
