"""What the functions behind the commands make of their options, without a process and without training."""

import dataclasses
import json

import pytest

from attention_jax import config as configs
from attention_jax.cli import command_options, commands
from attention_jax.errors import InputError
from attention_jax.files import write_json
from experiments import translate_files

RUN = {"variant": "", "seed": 0, "history": [], "environment": {"commit": "c"}}


@pytest.mark.parametrize("error, code", [(0.1, 0), (3.0, 1), (-0.1, 1)])
def test_one_differing_claim_gives_exit_code_1(tmp_path, error, code):
    """Number and sign agree, the number differs, both do; on recorded numbers, so that nothing runs."""
    (tmp_path / "mine.py").write_text("from experiments.date_luong import config\n")
    claims = '[[claim]]\ntext = "{0}"\nmetric = "test.error"\nsource = "me"\npublished = {0}\n'
    (tmp_path / "mine.toml").write_text(claims.format(0.1) + claims.format(3.0).replace("published", "sign = 1 #"))
    record = {"experiment": "mine", "runs": [RUN | {"metrics": {"test.error": error}}]}
    write_json(tmp_path / "results" / "mine.json", record)
    with pytest.raises(SystemExit) as stop:
        commands.reproduce([str(tmp_path / "mine.py"), "--scale", "recorded"])
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
        "export RUN --to zip",
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
@pytest.mark.parametrize("command", ["train", "sweep", "compile"])
def test_an_empty_name_of_weights_is_an_error(command, words, tmp_path):
    words = [word for word in words if command == "train" or word != "--resume"]
    out = {"compile": ["--target", "v5e"]}.get(command, ["--out", str(tmp_path / "run")])
    if "--resume" in words:
        write_json(tmp_path / "run" / "config.json", configs.to_json(translate_files.config()))
    with pytest.raises(InputError, match="--from needs a run or a file of weights, got an empty name"):
        commands.COMMANDS[command](["translate_files", *out, *words])


@pytest.mark.parametrize("words", ["--model.differential true", "--model.no-differential=False"])
def test_a_flag_takes_no_value(words):
    with pytest.raises(InputError, match="takes no value, .* give --model.differential or --model.no-differential;"):
        commands.train(["language_model", *words.split(), "--out", "x.y/z"])
