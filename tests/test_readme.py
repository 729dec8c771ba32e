"""README and docs/results.md say what was measured, and hide no miss; README's code runs as pasted."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import pytest

from attention_jax import catalogue, ledger
from attention_jax.comparison import elsewhere
from attention_jax.report.tables import claims_table, judge, markdown, number, values_of

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def claims() -> list[tuple]:
    """(experiment, claim, its runs) of every claim there is."""
    runs = {name: ledger.recorded(name)["runs"] for name in catalogue.names()}
    return [(name, claim, runs[name]) for name in catalogue.names() for claim in catalogue.load_experiment(name).claims]


def row(name: str, claim, runs: list) -> str:
    """A row of README's table."""
    value, verdict = judge(claim, runs)
    cells = (name, claim.text, number(value), number(claim.published), verdict, len(values_of(claim, runs)))
    return "| " + " | ".join(map(str, cells)) + " |"


def test_the_page_of_results_is_that_of_the_committed_results(claims):
    entries = [
        (name, catalogue.load_experiment(name).claims, ledger.recorded(name)["runs"]) for name in catalogue.names()
    ]
    verdicts = [judge(claim, runs)[1] for _, claim, runs in claims]
    counts = ", ".join(f"{verdicts.count(kind)} {kind}" for kind in dict.fromkeys(verdicts))
    others = [f"\n## {table.title}\n\n{markdown(table)}\n" for table in elsewhere(ROOT / "experiments" / "results")]
    generated = f"{markdown(claims_table(entries))}\n\n{counts}\n" + "".join(others)
    assert RESULTS.endswith(f"\n{generated}"), "the results have changed: make results"


def test_the_rows_that_readme_shows_are_committed_results_with_misses_among_them(claims):
    lines = README.splitlines()
    start = lines.index("| experiment | claim | ours | published | verdict | seeds |") + 2
    shown = lines[start : lines.index("", start)]
    stale = set(shown) - {row(*entry) for entry in claims}
    assert len(shown) >= 12 and not stale, f"README's table shows rows that are no recorded results: {sorted(stale)}"
    missed = sum("| missed |" in line for line in shown)
    share = sum(judge(claim, runs)[1] == "missed" for _, claim, runs in claims) / len(claims)
    assert missed >= 2 and missed / len(shown) >= share, "README's choice of rows looks better than the results are"


def test_readme_counts_the_verdicts_and_names_every_experiment_with_a_miss(claims):
    verdicts = [(name, judge(claim, runs)[1]) for name, claim, runs in claims]
    [(total, counts)] = re.findall(r"^(\d+) claims: (.*)\.$", README, re.MULTILINE)
    stated = {kind: int(count) for count, kind in re.findall(r"(\d+) ([a-z ]+)", counts)}
    assert (int(total), stated) == (len(verdicts), dict(Counter(kind for _, kind in verdicts)))
    [misses] = re.findall(r"^Misses: (.*?)\.$", README, re.MULTILINE | re.DOTALL)
    stated = {name: int(count) for name, count in re.findall(r"`(\w+)` (\d+)", misses)}
    assert stated == dict(Counter(name for name, kind in verdicts if kind == "missed"))


def test_readme_is_one_page():
    lines = README.splitlines()
    assert len(lines) <= 130 and max(map(len, lines)) <= 100


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
