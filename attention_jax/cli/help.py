"""What the command line says about itself: the commands, the options that are changed most, and what an option that
does not exist may mean."""

import dataclasses
import re
import shutil
import textwrap
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from attention_jax import catalog
from attention_jax.config.fields import field_docs, info_of, suggest_options, walk
from attention_jax.printing import docstrings, program

COMMON = (
    "model.hidden_size", "model.num_layers", "model.num_encoder_layers", "model.num_decoder_layers",
    "model.num_heads", "model.dropout", "model.score", "optim.learning_rate", "train.batch_size",
    "train.total_epochs", "train.max_steps", "train.seed",
)  # fmt: skip
"""Options of a configuration that `--help` shows, besides the user's data; `--help-all` shows every option."""
OPTIONS = Path(__file__).with_name("command_options.py")
"""The file of the commands' options, whose docstrings are read from the source: `python -OO` has no others."""
TITLES = {"data": "Data", "model": "Model", "optim": "Optimizer", "train": "Training"}
RARE = ("trust_code", "coordinator", "hosts", "host", "name")
"""Options of commands that only `--help-all` shows."""
NEEDED = {
    "NAME": "the name of an experiment: `launch.py list` shows them",
    "RUN": "the directory of a run, such as runs/date_luong/001",
}
"""What a command needs that was given none, by the name in its usage."""


def overview(about: str, commands: Iterable[str]) -> str:
    """Return the text of `launch.py --help`: `about` the program, and what each of the commands does."""
    width, docs = shutil.get_terminal_size((100, 24)).columns, docstrings(OPTIONS)
    lines = [about, "", f"usage: {program()} COMMAND ...", ""]
    for command in commands:
        first_sentence = re.split(r"(?<=\.)\s+(?=[A-Z])", docs[command.title()])[0]
        lines += _entry(command, first_sentence, 13, width)
    ending = [f"The options of a command: {program()} COMMAND --help", f"New here? {program()} list, docs/index.md"]
    return "\n".join([*lines, "", *ending])


def command_help(command: str, kind: type) -> str:
    """Return the help of a command: its usage, its arguments, and its options with their defaults."""
    docs, options = field_docs(kind), _options_of(kind)
    arguments = [field for field in dataclasses.fields(kind) if field not in options]
    positionals = [(_argument(kind, field).metavar, docs[field.name]) for field in arguments]
    line = " ".join([program(), command, *(name for name, _ in positionals)])
    sections = {"Arguments": [(name, "", None, text) for name, text in positionals]}
    sections["Options"] = [
        (flag(_command_option_name(kind, field)), _metavar(kind, field), field.default, docs[field.name])
        for field in options
    ]
    ending = f"The options of an experiment: {program()} {command} NAME --help"
    return _format_help(line, kind, sections, ending if positionals and positionals[0][0] == "NAME" else "")


def common_help(command: str, experiment: str, kind: type, config) -> str:
    """Return the options of an experiment that people change, with their defaults, as `train NAME --help` prints them.

    `kind` is the dataclass of the command's own options.
    """
    line = " ".join([program(), command, experiment])
    presets, sections = tuple(catalog.load_experiment(experiment).presets()), {}
    for name, metavar, default, text in _common(kind, config, presets):
        title = TITLES.get(name.rpartition(".")[0], f"Options of {command}")
        sections.setdefault(title, []).append((flag(name), metavar, default, text))
    return _format_help(line, kind, sections, f"All {len(list_option_names(kind, config))} options: {line} --help-all")


def _format_help(line: str, kind: type, sections: dict[str, list[tuple]], ending: str) -> str:
    """The text of a help: the usage, what the command does, entries (name, type, default, help) by section, and a
    line at the end."""
    width = shutil.get_terminal_size((100, 24)).columns
    about = " ".join(docstrings(OPTIONS)[kind.__name__].split())
    options = " [OPTIONS]" if any(title != "Arguments" and entries for title, entries in sections.items()) else ""
    lines = [f"usage: {line}{options}", "", *textwrap.wrap(about, width, break_on_hyphens=False)]
    for title, entries in sections.items():
        lines += ["", title] if entries else []
        for name, metavar, default, text in entries:
            plain = default is None or isinstance(default, bool) or default in ("", (), dataclasses.MISSING)
            default_text = (
                "" if plain else f" (default: {' '.join(default) if isinstance(default, tuple) else default})"
            )
            opposite = f", {name.replace('--', '--no-', 1)}" if default is True else ""
            lines += _entry(f"{name}{opposite} {metavar}".rstrip(), text + default_text, 32, width)
    return "\n".join([*lines, *(["", ending] if ending else [])])


def _common(kind: type, config, presets: Sequence[str]) -> Iterator[tuple[str, str, object, str]]:
    """Name, type, default and help of the options that are changed most: of the command, then of the configuration."""
    docs = field_docs(kind)
    for field in _options_of(kind):
        if field.name not in RARE and (field.name != "preset" or presets):
            text = f"Start from a size: {', '.join(presets)}." if field.name == "preset" else docs[field.name]
            yield _command_option_name(kind, field), _metavar(kind, field), field.default, text
    for section in TITLES:
        options = getattr(config, section)
        docs = field_docs(type(options)) if options is not None else {}
        for field in dataclasses.fields(options) if docs else ():
            if f"{section}.{field.name}" in COMMON or info_of(field).user_data:
                text, default = docs.get(field.name, ""), getattr(options, field.name)
                yield f"{section}.{field.name}", _metavar(type(options), field), default, text


def list_option_names(kind: type, config=None) -> list[str]:
    """The names of all options of a command and of a configuration, dotted and with underscores."""
    names = [_command_option_name(kind, field) for field in _options_of(kind)] if dataclasses.is_dataclass(kind) else []
    return names + ([name for name, _, _ in walk(config)] if config is not None else [])


def unknown_option(words: Iterable[str], option_names: Sequence[str]) -> str:
    """Return in a line which option in `words` does not exist and what may be meant; "" if none is found.

    >>> unknown_option(["x", "--optim.lr=1"], ["optim.learning_rate"])
    'there is no option --optim.lr; perhaps you meant --optim.learning-rate'
    """
    for word in words:
        typed = re.match(r"--?([A-Za-z][\w.-]*)", word)
        name = typed[1].replace("-", "_") if typed else "h"
        if name in (*option_names, "h", "help") or re.sub(r"(^|\.)no_", r"\1", name) in option_names:
            continue
        near = suggest_options(name, option_names)
        hint = f"; perhaps you meant {' or '.join(map(flag, near))}" if near else ""
        return f"there is no option {typed[0]}{hint}"
    return ""


def flag(name: str) -> str:
    """The flag of a dotted name: --optim.learning-rate."""
    return f"--{name.replace('_', '-')}"


def _options_of(kind: type) -> list[dataclasses.Field]:
    """The fields of a command's dataclass that are options, without its positional arguments."""
    positional = lambda field: getattr(_argument(kind, field), "metavar", None)
    return [field for field in dataclasses.fields(kind) if not positional(field)]


def _command_option_name(kind: type, field: dataclasses.Field) -> str:
    """The command-line name of an option: the name of its field, unless its annotation has another."""
    return getattr(_argument(kind, field), "name", None) or field.name


def _argument(kind: type, field: dataclasses.Field):
    """The annotation of a field with a name for the command line, or None."""
    hint = typing.get_type_hints(kind, include_extras=True)[field.name]
    return next((mark for mark in getattr(hint, "__metadata__", ()) if hasattr(mark, "metavar")), None)


def _metavar(kind: type, field: dataclasses.Field) -> str:
    """What follows an option in its help: the type of its value, or its choices; nothing after a switch."""
    hint = typing.get_type_hints(kind)[field.name]
    if typing.get_origin(hint) is typing.Literal:
        return "{" + ",".join(map(str, typing.get_args(hint))) + "}"
    return {bool: "", int: "INT", float: "FLOAT"}.get(hint, "..." if typing.get_origin(hint) is tuple else "STR")


def _entry(name: str, text: str, column: int, width: int) -> list[str]:
    """A name and its text, wrapped to the right of `column`; a long name has a line of its own."""
    body = textwrap.wrap(" ".join(text.split()), max(width - column, 20), break_on_hyphens=False) or [""]
    head = f"  {name}"
    if len(head) + 2 > column:
        return [head, *(" " * column + line for line in body)]
    return [f"{head:{column}}{body[0]}", *(" " * column + line for line in body[1:])]
