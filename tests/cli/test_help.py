"""The help of the command line, and what a wrong first guess at an option is answered."""

import dataclasses
import inspect
import re

import pytest

import attention_jax
from attention_jax import LoadedRun, Pretrained, catalog, export_run, import_run, load_run, printing, train_run
from attention_jax.cli import command_options, commands, help
from attention_jax.config import walk
from attention_jax.config.fields import COMMON_NAMES, user_data
from attention_jax.errors import InputError
from attention_jax.train import hosts

GUESSES = {
    "train date_luong --optim.lr 0.1": "perhaps you meant --optim.learning-rate;",
    "train date_luong --lr 0.1": "perhaps you meant --optim.learning-rate;",
    "train date_luong --train.num-epochs 3": "perhaps you meant --train.total-epochs;",
    "train date_luong --model.layers 2": "there is no option --model.layers; see launch.py train date_luong --help-all",
    "train date_luong --batch-size 64": "perhaps you meant --train.batch-size or --decode.batch-size;",
    "sweep date_luong --over optim.lr=1,2": "perhaps you meant optim.learning-rate",
    "train": "train needs the name of an experiment: `launch.py list` shows them",
    "train vit_digits --layers 2": "perhaps you meant --model.num-layers;",
    "train translate_files --model.layers 2": "--model.num-encoder-layers or --model.num-decoder-layers;",
    "train vit_digits --heads 2": "perhaps you meant --model.num-heads;",
    "train vit_digits --model.dim 2": "perhaps you meant --model.hidden-size;",
    "train vit_digits -lr=2": "perhaps you meant --optim.learning-rate;",
    "train vit_digits --bs 2": "perhaps you meant --train.batch-size;",
    "train vit_digits --wd 2": "perhaps you meant --optim.weight-decay;",
    "train vit_digits --epochs 2": "perhaps you meant --train.total-epochs;",
    "train translate_files --file a.tsv": "--data.",
    "train date_luong --output_dir x": "perhaps you meant --out;",
    "train date_luong --model.hiden-size 2": "perhaps you meant --model.hidden-size;",
    "train date_luong --nonsense 2": "there is no option --nonsense; see launch.py train date_luong --help-all",
    "predict runs/x --atention a.png": "perhaps you meant --attention;",
    "predict": "predict needs the directory of a run",
    "train translate_files pairs.tsv": "a file of data is given by its option, such as --data.tsv-file FILE;",
    "train date_luong date_attention": "unexpected date_attention;",
    "train --optim.learning-rate 3 date_luong": "train needs the name of an experiment",
    "date_luong": "to train the experiment of this name: launch.py train date_luong",
    "trian date_luong": "perhaps you meant train",
    "translate runs/x letter.txt": "perhaps you meant predict",
    "plot runs/x": "perhaps you meant evaluate",
    "watch runs/x": "perhaps you meant list",
    "sweep-report runs/sweeps/x": "perhaps you meant sweep",
    "nonsense": "choose one of list, ",
}
"""What newcomers type first, and the answer. The first seven are those of a review."""


@pytest.mark.parametrize("typed", GUESSES)
def test_wrong_option_error_suggests_right_one(typed):
    with pytest.raises(InputError) as error:
        commands.main(typed.split())
    assert GUESSES[typed] in str(error.value) and "\n" not in str(error.value)
    assert len(str(error.value)) < 160 and "default" not in str(error.value), "names only"


def test_every_common_name_is_of_an_option():
    options = {"out"}
    for name in catalog.experiment_names():
        options |= {option.rpartition(".")[2] for option, _, _ in walk(catalog.load_experiment(name).config())}
    assert {*COMMON_NAMES.values()} <= options and not options & COMMON_NAMES.keys()


def help_output(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        commands.main(list(words))
    assert stop.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["date_luong", "translate_files", "vit_digits", "exact_identities"])
def test_help_shows_common_options_help_all_every_option(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    config = catalog.load_experiment(name).config()
    flags = {help.flag(option) for option in help.list_option_names(command_options.Train, config)}
    short, full = help_output(capsys, "train", name, "--help"), help_output(capsys, "train", name, "--help-all")
    short_flags = re.findall(r"^  (--[\w.-]+)", short, re.MULTILINE)
    assert (
        5 <= len(short_flags) <= 20
        and {*short_flags} <= flags
        and "--out" in short_flags
        and max(map(len, short.splitlines())) <= 80
    )
    assert {*user_data(config)} <= {*short_flags}, "the user's files"
    assert all(flag in full for flag in flags - {"--name"}) and f"train {name} --help-all" in short
    assert ("--preset" in short_flags) == bool(catalog.load_experiment(name).presets())


def test_help_lists_every_command_on_one_screen(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    commands.main(["help"])
    text = capsys.readouterr().out
    assert all(re.search(rf"^  {name}\s+[A-Z].*", text, re.MULTILINE) for name in commands.COMMANDS)
    assert max(map(len, text.splitlines())) <= 120 and len(text.splitlines()) <= 40
    commands.main(["--help"])
    assert capsys.readouterr().out == text
    assert help_output(capsys, "help", "train") == help_output(capsys, "train", "--help")


@pytest.mark.parametrize("command", sorted({*commands.COMMANDS} - {"bench"}))
def test_command_help_lists_arguments_and_options(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text, kind = help_output(capsys, "help", command), getattr(command_options, command.title())
    assert all(f"\n  {help.flag(name)}" in text for name in help.list_option_names(kind))
    assert re.match(rf"usage: {printing.program()} {command}\b", text) and max(map(len, text.splitlines())) <= 100
    assert not re.search(r"[╭│]|default: (''|False|True|\(\))", text)


@pytest.mark.parametrize("word", ["--version", "-v", "version"])
def test_the_version_is_told(word, capsys):
    commands.main([word])
    assert capsys.readouterr().out == f"attention_jax {attention_jax.__version__}\n"


PYTHON = {
    "train": ([train_run, hosts.join, load_run], {"preset"}),
    "evaluate": (
        [LoadedRun.evaluate, LoadedRun.evaluate_classes, LoadedRun.perplexity, Pretrained.perplexity, load_run],
        set(),
    ),
    "predict": ([LoadedRun.predict, LoadedRun.with_sampling, load_run], {"out", "column", "chat", "force"}),
    "look": ([LoadedRun.look, load_run], {"out", "force"}),
    "export": ([export_run], set()),
    "import": ([import_run], set()),
}
"""{command: (functions that have its options as parameters, what Python says with what is passed or returned)}"""


@pytest.mark.parametrize("command", PYTHON)
def test_options_have_the_same_names_in_python(command):
    functions, exceptions = PYTHON[command]
    kind = getattr(command_options, command.title())
    parameters = {name for function in functions for name in inspect.signature(function).parameters}
    options = {field.name for field in dataclasses.fields(kind)} - {"run", "experiment"}
    assert options - parameters == exceptions
