"""The code of the documentation runs as pasted, and troubleshooting.md has messages of the commands."""

import inspect
import os
import re
import shlex
from pathlib import Path

import pytest
import real_models
from programs import Programs

import attention_jax
from attention_jax.cli import commands
from attention_jax.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FAST = (
    "index",
    "comparison",
    "fused",
    "lineage",
    "lineage_since",
    "masks",
    "mla",
    "recipes",
    "installation",
    "decoding",
    "devices",
    "troubleshooting",
)
"""Pages whose Python blocks, one after the other, are a program of seconds."""
TRAINS = ("quickstart", "run_directory")
"""Pages that train the default experiment: here its smoke configuration."""


def blocks(page: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def run():
    """Run the blocks of a page in a directory; all pages in one process, which imports jax once."""
    with Programs(os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}) as programs:

        def run_code(code: str, directory: Path):
            result = programs("-c", code, cwd=directory)
            assert result.returncode == 0, result.stderr[-3000:]

        yield run_code


@pytest.mark.slow
@pytest.mark.parametrize("page", FAST)
def test_code_of_a_page_runs_as_pasted(page, run, tmp_path):
    code = blocks(DOCS / f"{page}.md")
    assert code
    run("\n".join(code), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", TRAINS)
def test_code_of_a_page_that_trains_runs_small(page, run, tmp_path):
    code = "\n".join(blocks(DOCS / f"{page}.md"))
    assert code.count(".config()") == 1
    run(code.replace(".config()", ".smoke()"), tmp_path)


SESSIONS = """
import contextlib, doctest, sys
with contextlib.redirect_stdout(sys.stderr):
    failed, tried = doctest.testfile("page.txt", module_relative=False)
assert tried > 3 and not failed
"""


@pytest.mark.slow
@pytest.mark.parametrize("page", ["quickstart", "pretrained", "interpretability", "from_transformerlens"])
def test_sessions_with_a_real_model_print_what_the_page_says(page, run, tmp_path):
    """Skipped without the packages that have SmolLM2 and MiniLM."""
    files = {"smollm2.gguf": real_models.smollm2(), "minilm": real_models.minilm(), "LICENSE": ROOT / "LICENSE"}
    for name, path in files.items():
        (tmp_path / name).symlink_to(path)
    sessions = "\n".join(blocks(DOCS / f"{page}.md", "pycon"))
    if page == "pretrained":  # and the examples that need a model
        examples = inspect.getdoc(attention_jax.Pretrained) + "\n\n" + inspect.getdoc(attention_jax.load_pretrained)
        sessions += "\n" + examples.replace("  # doctest: +SKIP", "")
    (tmp_path / "page.txt").write_text(sessions, encoding="utf-8")
    run(SESSIONS, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_pretrained_model_with_another_attention_trains_and_exports(tmp_path, monkeypatch):
    """The commands under this heading of pretrained.md, with one step, a small batch and a program for one platform."""
    section = (DOCS / "pretrained.md").read_text(encoding="utf-8").partition("## Fine-tune with another attention")[2]
    lines = section.split("```\n")[1].replace("\\\n", " ").splitlines()
    monkeypatch.chdir(tmp_path)
    Path("minilm").symlink_to(real_models.minilm())
    texts = [f"{kind}\t{word} is {kind}\n" for word in "abcdefghij" for kind in ("good", "bad")]
    Path("labeled.tsv").write_text("".join(texts), encoding="utf-8")
    small = {"train": ["--train.max-steps", "1", "--train.batch-size", "2"], "export": ["--platforms", "cpu"]}
    for line in lines:
        _, _, command, *words = shlex.split(line)
        commands.main([command, *words, *small.get(command, [])])
    assert (tmp_path / "runs/sink/export/stablehlo/cpu.stablehlo").exists()


def read_consoles(page: Path) -> list[tuple[str, str]]:
    """(command, error message) of each console block of a page."""
    pairs = [block.rstrip("\n").split("\n", 1) for block in blocks(page, "console")]
    assert all(command.startswith("$ python launch.py ") for command, _ in pairs)
    return [(command.removeprefix("$ python launch.py "), message) for command, message in pairs]


MESSAGES = read_consoles(DOCS / "troubleshooting.md")


def extract_names(message: str) -> set[str]:
    """The options, numbers, files and quoted values of a message: what has to be right whatever the sentence is."""
    return set(
        re.findall(r"--[\w.-]*\w|'[^']+'|\b[\w-]+\.(?:tsv|loss|exact_match)\b|(?<![\w.])-?\d+(?:\.\d+)?\b", message)
    )


def test_what_a_message_names_is_found():
    text = "error: bad.tsv line 2: 'x y' of --data.on-bad-record skip, got -1.0; --metric valid.loss"
    assert extract_names(text) == {"bad.tsv", "2", "'x y'", "--data.on-bad-record", "-1.0", "--metric", "valid.loss"}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "message"), MESSAGES, ids=[command for command, _ in MESSAGES])
def test_a_command_of_troubleshooting_prints_its_message(command, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bad.tsv").write_text("a b c\tx y z\nbad line without tab\n", encoding="utf-8")
    Path("latin.tsv").write_bytes(b"\xff\xfe\x00")
    Path("empty").mkdir()
    with pytest.raises(InputError) as raised:
        commands.main(shlex.split(command))
    assert "\n" not in str(raised.value)
    assert extract_names(message) <= extract_names(f"error: {raised.value}"), (
        f"troubleshooting.md has another message: {raised.value}"
    )
