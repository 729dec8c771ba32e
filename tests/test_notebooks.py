"""The notebooks are their scripts: the same cells, and they run from the first to the last line. The checks of a
lesson's exercises refuse the placeholder, None and another shape, and take the solution."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from itertools import groupby, pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "docs" / "notebooks").glob("*.py"))
pytestmark = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


def cells_of_script(script: Path) -> list[tuple[str, str]]:
    """(kind, source) of every cell: a line `# %%` begins code, `# %% [markdown]` text, whose lines are comments."""
    _, *chunks = re.split(r"^# %%(.*)\n", script.read_text(encoding="utf-8"), flags=re.MULTILINE)
    cells = []
    for mark, source in zip(chunks[::2], chunks[1::2]):
        kind = "markdown" if "markdown" in mark else "code"
        text = re.sub(r"^# ?", "", source, flags=re.MULTILINE) if kind == "markdown" else source
        cells.append((kind, text.strip()))
    return cells


def with_solutions(script: Path) -> str:
    """The code of a script; after the check of an exercise's placeholder, the check sees None, another shape and the
    solution."""
    cells = cells_of_script(script)
    code = []
    for (kind, source), (_, following) in pairwise([*cells, ("", "")]):
        code += [source] if kind == "code" else []
        if following.startswith("<details>"):
            wrong = [code[-2].replace("...", answer) for answer in ("None", "np.zeros((2, 5, 3))")]
            solution = re.search(r"^```python\n(.*?)^```$", following, re.DOTALL | re.MULTILINE)[1]
            for answer in (*wrong, solution):
                code += [answer, source]
    return "\n\n".join(f"# %%\n{source}" for source in code)


def test_notebook_matches_script_and_has_outputs(script):
    """`make notebooks` writes it."""
    cells = json.loads(script.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in cells] == cells_of_script(script)
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])
    assert str(ROOT.parent) not in script.with_suffix(".ipynb").read_text(encoding="utf-8")


def test_lesson_has_its_form(script):
    """A question, a function of the package by its source, what the book reports, three exercises; 900 words."""
    cells = cells_of_script(script)
    text = "\n".join(source for kind, source in cells if kind == "markdown")
    if not text.startswith("# Lesson"):
        return
    prose = re.sub(r"^```python\n.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) <= 900
    assert "**Question.**" in text and "## What the" in text and "## A figure" in text
    assert text.count("<details><summary>Solution</summary>") == text.count("</details>") == 3
    assert any("inspect.getsource(" in source for kind, source in cells if kind == "code")


SMALLER = {
    "finetune": {
        "slice(0, 150)": "slice(0, 30)",
        '"train.total_epochs": 8': '"train.total_epochs": 2',
        '"train.total_epochs": 6': '"train.total_epochs": 1',
        '"train.steps_per_call": 4': '"train.steps_per_call": 4, "model.num_layers": 1',
    }
}
"""What the scripts train with here."""


@pytest.mark.slow
def test_notebook_script_runs(script, tmp_path):
    """As a notebook in a kernel where the extra `notebooks` is installed, and as a script elsewhere."""
    code = with_solutions(script)
    for number, smaller in SMALLER.get(script.stem, {}).items():
        assert number in code
        code = code.replace(number, smaller)
    (tmp_path / script.name).write_text(code, encoding="utf-8")
    command, environment = [script.name], os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    kernel = importlib.util.find_spec("jupytext") is not None
    if kernel:
        del environment["MPLBACKEND"]  # the kernel has its own, which shows figures in the notebook
        command = ["-m", "jupytext", "--to", "notebook", "--execute", "--set-kernel", "python3", script.name]
    result = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    printed = result.stdout
    if kernel:
        cells = json.loads((tmp_path / script.name).with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
        assert all(cell["execution_count"] for cell in cells if cell["cell_type"] == "code")
        outputs = [output for cell in cells if cell["cell_type"] == "code" for output in cell["outputs"]]
        printed = "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")
    answers = [line for line in printed.splitlines() if line in ("right", "not yet")]
    num_exercises = script.read_text(encoding="utf-8").count("<details>")
    assert [answer for answer, _ in groupby(answers)] == ["not yet", "right"] * num_exercises


@pytest.mark.parametrize("place", [".", "docs/notebooks"])
def test_script_finds_uninstalled_package(script, place):
    """In the working directories of scripts and of notebooks; the imports of its first cell are run."""
    first = next(text for kind, text in cells_of_script(script) if kind == "code")
    imports = "\n".join(line for line in first.splitlines() if line.startswith(("import sys", "sys.path")))
    code = f"import sys; sys.path.remove('')\n{imports}\nimport attention_jax; print(attention_jax.__file__)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / place, env=environment, capture_output=True, text=True
    )
    assert Path(result.stdout.strip()).resolve() == ROOT / "attention_jax" / "__init__.py", result.stderr
