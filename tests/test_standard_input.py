"""Texts from standard input and from pipes."""

import io
import os
import sys
import threading
import types

import pytest

from attention_jax.cli import commands
from attention_jax.data.text_tables import Columns
from attention_jax.errors import InputError


@pytest.fixture(autouse=True)
def loud(monkeypatch):
    """The run that every command loads answers with capitals."""
    answer = lambda texts, figure=None: [text.upper() for text in texts]
    run = types.SimpleNamespace(predict=answer, look=answer, table_columns=Columns(), classes=())
    monkeypatch.setattr("attention_jax.load_run", lambda *_, **__: run)


def run_with_input(monkeypatch, capsys, content: bytes, *words) -> str:
    """The output of a command with `content` on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))
    commands.main(list(words))
    return capsys.readouterr().out


def test_texts_from_file_pipe_or_stdin(tmp_path, monkeypatch, capsys):
    text = "one ł\n\ntwo\r\n".encode()
    (tmp_path / "in.txt").write_bytes(text)
    os.mkfifo(tmp_path / "pipe.txt")
    threading.Thread(target=(tmp_path / "pipe.txt").write_bytes, args=(text,), daemon=True).start()
    for file in ("-", str(tmp_path / "in.txt"), str(tmp_path / "pipe.txt")):
        run_with_input(monkeypatch, capsys, text, "predict", "runs/x", file, "--out", str(tmp_path / "out"), "--force")
        assert (tmp_path / "out").read_text(encoding="utf-8") == "ONE Ł\n\nTWO\n"
    output = run_with_input(monkeypatch, capsys, text, "predict", "runs/x", "three", "-")
    assert output.splitlines() == ["three -> THREE", "one ł -> ONE Ł", "", "two -> TWO"]


@pytest.mark.parametrize(
    "content, message",
    [(b"", "standard input is empty"), (b"\n \n", "only empty lines"), (b"ok\n\xff\n", "line 2: not")],
)
@pytest.mark.parametrize("command", ["predict", "look"])
def test_bad_standard_input_is_one_line(command, content, message, monkeypatch, capsys):
    with pytest.raises(InputError, match=message):
        run_with_input(monkeypatch, capsys, content, command, "runs/x", "-")
