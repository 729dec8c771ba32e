"""Data and texts cannot command a terminal."""

import json

from test_launch import launch_here

from attention_jax.data.text_tables import Columns
from attention_jax.printing import escape_control
from attention_jax.report.run_status import print_status
from attention_jax.runs import api

COMMANDS = "\x1b]0;mine\x07\x1b[2J\x9b2J\r\x08\x7f"


def harmless(text: str) -> bool:
    return all(character in "\n\t" or character.isprintable() for character in text)


def test_control_characters_are_written_out():
    assert escape_control(COMMANDS) == r"\x1b]0;mine\x07\x1b[2J\x9b2J\x0d\x08\x7f"
    assert escape_control("an\nordinary\ttext: ça va, 你好") == "an\nordinary\ttext: ça va, 你好"


def test_status_shows_samples_names_and_reasons_harmlessly(tmp_path, capsys):
    rows = [{"step": 1, "epoch": 1, "seconds": 1.0, f"valid.{COMMANDS}": 1.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "samples.txt").write_text(f"{COMMANDS}\n")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "failure.json").write_text(json.dumps({"reason": COMMANDS}))
    print_status(tmp_path)
    output = capsys.readouterr().out
    assert harmless(output) and r"\x1b[2J" in output


def test_predict_answers_harmlessly_and_errors_are_harmless(tmp_path, monkeypatch):
    class Loaded:
        table_columns = Columns()
        predict = lambda self, texts, attention: [COMMANDS for _ in texts]

    monkeypatch.setattr(api, "load_run", lambda *_, **__: Loaded())
    monkeypatch.setattr("attention_jax.load_run", api.load_run, raising=False)
    result = launch_here("predict", tmp_path, f"a{COMMANDS}")
    assert result.returncode == 0 and harmless(result.stdout) and result.stdout.count(r"\x1b[2J") == 2, result.stderr
    result = launch_here("predict", tmp_path, f"no/such/{COMMANDS}.txt")
    assert result.returncode == 2 and harmless(result.stderr) and r"\x1b[2J" in result.stderr
