"""README and docs/results.md say what was measured, and hide no miss; README's code runs as pasted."""

import os
import re
from collections import Counter
from pathlib import Path

import jax
import pytest
from programs import Programs

from attention_jax.claims import catalog, pages as result_pages
from attention_jax.claims.judged import Judged, judged

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def experiments() -> list:
    return [catalog.load_experiment(name) for name in catalog.names()]


@pytest.fixture(scope="module")
def rows(experiments) -> list[Judged]:
    """Every claim there is, with its recorded runs."""
    return [one for experiment in experiments for one in judged(experiment)]


def test_the_pages_are_those_of_the_committed_results(tmp_path):
    pages = ("README.md", "docs/results.md", "docs/replication.md", "docs/reproduce.md")
    (tmp_path / "docs").mkdir()
    for name in pages:
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    result_pages.write_pages(tmp_path)
    stale = [name for name in pages if (tmp_path / name).read_text() != (ROOT / name).read_text()]
    assert not stale, "the results have changed: make results"


def test_readme_shows_committed_results_with_misses_among_them(rows):
    lines = README.splitlines()
    start = lines.index("| experiment | claim | kind | bound | published | ours | verdict |") + 2
    shown = lines[start : lines.index("", start)]
    stale = set(shown) - {result_pages.readme_line(one) for one in rows}
    assert len(shown) >= 12 and not stale, f"README's table shows lines that are no recorded results: {sorted(stale)}"
    missed = sum("| missed" in line for line in shown)
    share = sum(one.verdict == "missed" for one in rows) / len(rows)
    assert missed >= 2 and missed / len(shown) >= share, "README's choice of lines looks better than the results are"


def test_readme_has_the_counts_of_every_kind_with_caveats_and_misses(experiments, rows):
    counts = README.partition("<!-- counts -->\n")[2].partition("\n<!-- end -->")[0]
    assert counts == result_pages.readme_counts(experiments, rows)
    misses = Counter(one.experiment for one in rows if one.verdict == "missed")
    counts = " ".join(counts.split())
    missed = counts.partition("Missed: ")[2]
    assert all(f"`{name}` {count}" in missed for name, count in misses.items()) and "set after a result" in counts
    assert sum(len(experiment.claims) for experiment in experiments) == len(rows) and "| all | " in counts


def blocks_of(page: str) -> list[str]:
    """The Python code of a page."""
    return re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def test_attend_of_readme_runs_as_pasted(tmp_path):
    """Both blocks without a warning; the memory that the first one speaks of is what the compiler says."""
    blocks = blocks_of(README)
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    memory = "print(jax.jit(jax.grad(loss)).lower(8.0).compile().memory_analysis().temp_size_in_bytes)"
    assert len(blocks) == 3
    with Programs(environment) as run:
        batched, ended = (run("-c", code, cwd=tmp_path) for code in (blocks[1], blocks[0] + memory))
    assert batched.stdout == 2 * "(2, 4, 128, 16)\n", batched.stderr[-3000:]
    assert ended.returncode == 0, ended.stderr[-3000:]
    gradient, temporaries = map(float, ended.stdout.split())
    least = 3.5 * 2**20 if jax.__version__.startswith("0.10.") else 0  # later compilers need less than README says
    assert gradient != 0 and least < temporaries < 4.5 * 2**20


def test_the_quickstart_of_readme_runs_as_pasted(tmp_path):
    """In an empty directory, with the experiment made small: `smoke` in the place of `config`."""
    (quickstart,) = [block for block in blocks_of(README) if "train_run" in block]
    small = quickstart.replace(".config()", ".smoke()")
    assert small != quickstart and len(quickstart.splitlines()) <= 8
    with Programs(os.environ | {"PYTHONPATH": str(ROOT)}) as run:
        ended = run("-c", small, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.splitlines()[-1] == "(1, 1, 10, 29)" and (tmp_path / "attention.html").exists()
