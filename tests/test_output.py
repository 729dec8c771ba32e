"""Standard output that cannot take what is printed: closed, full, left by its reader, or of a small encoding."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attention_jax import config as configs, train_run
from attention_jax.cli import command_options
from attention_jax.printing import Lasting, docstrings, prepare_streams

ROOT = Path(__file__).resolve().parents[1]
RUN = ROOT / "tests" / "runs" / "date_luong"
TINY = ("--data.examples", "600", "--model.hidden-size", "8", "--model.embed-size", "4", "--train.total-epochs", "3")
GOES_ON = "the work continues and is saved\n"


def launch(words: str, output: str = "", python=(), **variables) -> subprocess.CompletedProcess:
    """`launch.py WORDS` with the redirection `output` of the shell, as in "> /dev/full" or "| true"."""
    command = f'"$@" {output}; exit ${{PIPESTATUS[0]}}'
    run = [sys.executable, *python, "launch.py", *words.split()]
    return subprocess.run(
        ["bash", "-c", command, "bash", *run], cwd=ROOT, capture_output=True, text=True, env=os.environ | variables
    )


def open_closed_pipe() -> io.TextIOWrapper:
    """A stream whose reader has gone."""
    read, write = os.pipe()
    os.close(read)
    return open(write, "w", encoding="utf-8")


def test_failed_printing_never_ends_run(tmp_path, monkeypatch, capsys):
    def study(config, directory):
        for step in range(3):
            print(f"step {step}", flush=True)
        return {"x": 1.0}

    with open_closed_pipe() as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        run = train_run(configs.Config("x", configs.Dates(), configs.LuongSeq2seqConfig()), tmp_path / "r", study=study)
        assert sys.stdout is nobody
    assert run.result["metrics"] == {"x": 1.0}
    assert capsys.readouterr().err == f"nothing can be printed any more (Broken pipe); {GOES_ON}"


def test_lasting_stream_reports_error_once(capsys):
    with open("/dev/full", "w", encoding="utf-8") as full:
        stream = Lasting(full)
        for _ in range(2):
            print("much " * 5_000, file=stream, flush=True)
    assert capsys.readouterr().err == f"nothing can be printed any more (No space left on device); {GOES_ON}"


@pytest.mark.parametrize(
    "words, output, code, lines",
    [
        ("--help", "| true", (0, 128 + signal.SIGPIPE), 0),
        ("--help", "> /dev/full", (2,), 1),
        ("list nadaraya_watson", ">&-", (0,), 0),
    ],
)
def test_a_command_ends_without_a_traceback(words, output, code, lines):
    result = launch(words, output)
    assert result.returncode in code and result.stderr.count("\n") == lines, result.stderr


@pytest.mark.parametrize("columns", ["0", "2", "-3", "x", "²"])
def test_help_is_laid_out_in_any_width(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    prepare_streams()
    assert 40 <= int(os.environ["COLUMNS"]) <= 1000
    with pytest.raises(SystemExit) as stop:
        command_options.parse(command_options.Look, ["--help"])
    assert stop.value.code == 0 and "Show the attention maps" in capsys.readouterr().out


def test_signal_in_parser_is_not_option_error():
    def raise_sigterm(words):
        raise SystemExit(128 + signal.SIGTERM)

    with pytest.raises(SystemExit) as stop, pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_options.tyro, "cli", lambda *_, **__: raise_sigterm(()))
        command_options.parse(command_options.Evaluate, ["x"])
    assert stop.value.code == 128 + signal.SIGTERM


@pytest.mark.parametrize("encoding, printed", [("ascii", r"\u0142 \xe9"), ("latin-1", r"\u0142 é"), ("utf-8", "ł é")])
def test_what_an_encoding_lacks_is_escaped(encoding, printed):
    code = "from attention_jax.printing import prepare_streams; prepare_streams(); print('\u0142 \xe9')"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, cwd=ROOT, env=os.environ | {"PYTHONIOENCODING": encoding}
    )
    assert result.stdout.decode(encoding) == printed + "\n", result.stderr


def test_help_is_there_without_docstrings():
    result = launch("--help", python=("-OO",), PYTHONIOENCODING="ascii")
    file = ROOT / "attention_jax" / "cli" / "command_options.py"
    assert result.returncode == 0 and docstrings(file)["Evaluate"].partition(",")[0] in " ".join(result.stdout.split())
    assert launch("--help").stdout == result.stdout


TRAIN = f"train date_luong {' '.join(TINY)} --out OUT"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, output, code",
    [
        (TRAIN, "| true", 0),
        (TRAIN, "> /dev/full", 0),
        (f"predict {RUN} 1/2/93", "2>&-", 0),
        (f"predict {RUN} 1/2/93", "> /dev/full", 2),
    ],
)
def test_commands_work_wherever_their_output_goes(words, output, code, tmp_path):
    """One that goes on working, and one that computes what it prints."""
    result = launch(words.replace("OUT", str(tmp_path / "t")), output)
    assert "Traceback" not in result.stderr and "Exception ignored" not in result.stderr, result.stderr
    assert result.returncode == code and (words != TRAIN or (tmp_path / "t" / "result.json").exists())
