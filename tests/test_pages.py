"""The code of the documentation runs as pasted, and troubleshooting.md has the messages that the commands print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FAST = ("fused", "masks", "installation", "decoding", "mixed_precision", "run_directory")
"""Pages whose Python blocks, one after the other, are a program of seconds."""
TRAINS = ("quickstart", "checkpoints")
"""Pages that train the default experiment: here its smoke configuration."""


def blocks(page: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def run(code: str, directory: Path) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("page", FAST)
def test_the_code_of_a_page_runs_as_pasted(page, tmp_path):
    code = blocks(DOCS / f"{page}.md")
    assert code
    ended = run("\n".join(code), tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("page", TRAINS)
def test_the_code_of_a_page_that_trains_runs_with_a_small_configuration(page, tmp_path):
    code = "\n".join(blocks(DOCS / f"{page}.md"))
    assert code.count(".config()") == 1
    ended = run(code.replace(".config()", ".smoke()"), tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]
