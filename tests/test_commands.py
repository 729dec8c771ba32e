"""What the functions behind the commands make of their options, without a process and without training."""

import dataclasses
import json

import pytest

from attention_jax import config as configs
from attention_jax.cli import command_options, commands
from attention_jax.errors import InputError
from attention_jax.files import write_json
from experiments import translate_files


@pytest.mark.parametrize("error, code", [(0.1, 0), (3.0, 1), (-0.1, 1)])
def test_one_differing_claim_gives_exit_code_1(tmp_path, error, code):
    """Number and sign agree, the number differs, both do."""
    study = f"study = lambda config, directory: {{'test.error': {error} * (1 + config.train.seed / 1e4)}}\n"
    (tmp_path / "mine.py").write_text("from experiments.date_luong import config\n" + study)
    claims = '[[claim]]\ntext = "{0}"\nmetric = "test.error"\nsource = "me"\npublished = {0}\n'
    (tmp_path / "mine.toml").write_text(claims.format(0.1) + claims.format(3.0).replace("published", "sign = 1 #"))
    words = [str(tmp_path / "mine.py"), "--no-record", "--seeds", "2", "--root", str(tmp_path / "runs")]
    with pytest.raises(SystemExit) as stop:
        commands.reproduce(words)
    assert stop.value.code == code


class Asked(Exception):
    """Ends a command where it asks for a run."""


@pytest.mark.parametrize("flags, trusted", [((), False), (("--trust-code",), True)], ids=["untrusted", "trusted"])
@pytest.mark.parametrize(
    "words",
    [
        "evaluate RUN",
        "predict RUN text",
        "look RUN",
        "predict RUN TEXTS --out OUT",
        "evaluate RUN --figures",
        "export RUN",
        "export RUN --to stablehlo",
    ],
)
def test_commands_import_run_code_only_if_trusted(words, flags, trusted, tmp_path, monkeypatch):
    def ask(*_, trust_code=None, **__):
        raise Asked(trust_code)

    for place in ("attention_jax.load_run", "attention_jax.runs.api.load_run", "attention_jax.runs.saved.read_config"):
        monkeypatch.setattr(place, ask, raising=False)
    write_json(tmp_path / "run" / "result.json", {})
    (tmp_path / "run" / "final").mkdir()
    (tmp_path / "texts.txt").write_text("a text\n")
    places = {"RUN": str(tmp_path / "run"), "TEXTS": str(tmp_path / "texts.txt"), "OUT": str(tmp_path / "out")}
    command, *arguments = [places.get(word, word) for word in words.split()]
    with pytest.raises(Asked) as error:
        commands.COMMANDS[command]([*arguments, *flags])
    assert error.value.args == (trusted,)


def test_resume_rejects_preset_and_initial_weights(tmp_path):
    args = command_options.Train("translate_files", out=str(tmp_path), resume=True)
    [preset, *_] = translate_files.presets()
    write_json(tmp_path / "config.json", json.loads(json.dumps(configs.to_json(translate_files.config()))))
    assert commands.base_config(args) == translate_files.config()
    for changed, word in (({"preset": preset}, f"--preset {preset}"), ({"init_weights": "x"}, "--from x")):
        with pytest.raises(InputError, match=f"has begun; {word} is for a new one"):
            commands.base_config(dataclasses.replace(args, **changed))


@pytest.mark.parametrize("words", [["--from", ""], ["--from="], ["--from", "", "--resume"]])
@pytest.mark.parametrize("command", ["train", "sweep"])
def test_an_empty_name_of_weights_is_an_error(command, words, tmp_path):
    words = [word for word in words if command == "train" or word != "--resume"]
    out = ["--out", str(tmp_path / "run")]
    if "--resume" in words:
        write_json(tmp_path / "run" / "config.json", configs.to_json(translate_files.config()))
    with pytest.raises(InputError, match="--from needs a run or a file of weights, got an empty name"):
        commands.main([command, "translate_files", *out, *words])


@pytest.mark.parametrize("words", ["--model.differential true", "--model.no-differential=False"])
def test_a_flag_takes_no_value(words):
    with pytest.raises(InputError, match="takes no value, .* give --model.differential or --model.no-differential;"):
        commands.train(["language_model", *words.split(), "--out", "x.y/z"])


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "none", "May 1", "--out", "OLD"],
        ["predict", "none", "May 1", "--attention", "OLD"],
        ["look", "none", "May 1", "--out", "OLD"],
        ["compare", "none", "--out", "OLD"],
        ["compare", "none", "--csv", "OLD"],
        ["compare", "none", "--latex", "OLD"],
    ],
)
def test_file_that_exists_is_refused_before_any_work(words, tmp_path):
    """The run does not even exist."""
    old = tmp_path / ("old.html" if "look" in words else "old.png")
    old.write_text("mine")
    words = [str(old) if word == "OLD" else word for word in words]
    with pytest.raises(InputError, match=r"old.*: it exists already, and --force"):
        commands.main(words)
    assert old.read_text() == "mine" and [*tmp_path.iterdir()] == [old]


def test_two_outputs_are_two_files_and_force_needs_one():
    with pytest.raises(InputError, match="--latex and --csv need different files, got x and x"):
        commands.main(["compare", "none", "--latex", "x", "--csv", "x"])
    for words in ("compare none --force", "predict none text --force"):
        with pytest.raises(InputError, match="--force replaces .*: leave it out"):
            commands.main(words.split())


@pytest.mark.parametrize("words", [["train", "date_luong", "--out", ""], ["compare", "none", "--csv="]])
def test_empty_name_of_output_is_an_error(words):
    with pytest.raises(InputError, match="needs a file or a directory, got an empty name"):
        commands.main(words)


def test_deleted_working_directory_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for command in ("sweep date_luong", "train date_luong", "list"):
        with pytest.raises(InputError, match="the working directory was deleted"):
            commands.main(command.split())
