"""README and docs/results.md say what was measured, and hide no miss; README's code runs as pasted."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import pytest

from attention_jax import catalogue, record
from attention_jax.comparison import elsewhere
from attention_jax.report.tables import markdown, number
from attention_jax.report.verdicts import bounds, ours, with_caveats

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def experiments() -> list:
    return [catalogue.load_experiment(name) for name in catalogue.names()]


@pytest.fixture(scope="module")
def rows(experiments) -> list[record.Judged]:
    """Every claim there is, with its recorded runs."""
    return [one for experiment in experiments for one in record.judged(experiment)]


def readme_line(one: record.Judged) -> str:
    """A line of README's table of results."""
    claim, runs = one.claim, one.runs
    cells = (claim.kind, bounds(claim), number(claim.published), ours(claim, runs), with_caveats(claim, runs))
    return "| " + " | ".join((one.experiment, claim.text, *cells)) + " |"


def test_the_page_of_results_is_that_of_the_committed_results(experiments):
    others = [f"\n## {table.title}\n\n{markdown(table)}\n" for table in elsewhere(ROOT / "experiments" / "results")]
    generated = f"<!-- generated -->\n{record.page(experiments)}\n" + "".join(others)
    assert RESULTS.endswith(f"\n{generated}"), "the results have changed: make results"


def test_the_page_of_the_replication_is_that_of_the_committed_results(rows):
    page = (ROOT / "docs" / "replication.md").read_text(encoding="utf-8")
    assert page.endswith(f"\n<!-- generated -->\n{record.replication_page(rows)}\n"), "make results"


def test_readme_shows_committed_results_with_misses_among_them(rows):
    lines = README.splitlines()
    start = lines.index("| experiment | claim | kind | bound | published | ours | verdict |") + 2
    shown = lines[start : lines.index("", start)]
    stale = set(shown) - {readme_line(one) for one in rows}
    assert len(shown) >= 12 and not stale, f"README's table shows lines that are no recorded results: {sorted(stale)}"
    missed = sum("| missed" in line for line in shown)
    share = sum(one.verdict == "missed" for one in rows) / len(rows)
    assert missed >= 2 and missed / len(shown) >= share, "README's choice of lines looks better than the results are"


def test_readme_counts_by_kind_with_caveats_and_names_every_experiment_with_a_miss(experiments, rows):
    assert markdown(record.counts_table(rows)) in README, "make results, and copy the table of counts into README"
    text = " ".join(README.split())
    assert f"{record.caveats_line(rows)}." in text
    withdrawn = [bound for experiment in experiments for bound in experiment.withdrawn]
    assert f"{len(withdrawn)} bounds have been withdrawn" in text
    [misses] = re.findall(r"^Misses: (.*?)\.$", README, re.MULTILINE | re.DOTALL)
    stated = {name: int(count) for name, count in re.findall(r"`(\w+)` (\d+)", misses)}
    assert stated == dict(Counter(one.experiment for one in rows if one.verdict == "missed"))


def test_the_code_of_readme_runs_as_pasted():
    """Each block in a fresh process; the memory that the one about `attend` speaks of is what the compiler says."""
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"PYTHONPATH": str(ROOT)}
    memory = "print(jax.jit(jax.grad(loss)).lower(8.0).compile().memory_analysis().temp_size_in_bytes)"
    assert len(blocks) == 1
    command = [sys.executable, "-W", "error", "-c", blocks[0] + memory]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    gradient, temporaries = map(float, ended.stdout.split())
    least = 3.5 * 2**20 if jax.__version__.startswith("0.10.") else 0  # later compilers need less than README says
    assert gradient != 0 and least < temporaries < 4.5 * 2**20
